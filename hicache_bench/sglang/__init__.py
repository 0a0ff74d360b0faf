"""Edge to one SGLang server: addresses, keys, administrative calls, configuration capture, metrics."""
