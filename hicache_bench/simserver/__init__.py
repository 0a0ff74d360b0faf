"""A plain SGLang-compatible server without a model: same routes and answers, made-up timing, simulated cache."""
