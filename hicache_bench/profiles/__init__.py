"""Model profiles: what a model's prompts look like in the cache. Data files beside the loader, one a model."""
