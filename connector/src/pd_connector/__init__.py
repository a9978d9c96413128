"""vLLM plugin for token-exact two-way KV transfer. See `plugin.register`, where vLLM enters."""

__version__ = "0.1.0"
