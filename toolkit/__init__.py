"""Click toolkit for prefill/decode serving with two-way KV transfer."""

__version__ = "0.1.0"
