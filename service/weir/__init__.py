"""weir: an LLM inference microservice that admits work by the KV-cache budget that remains."""

__version__ = "0.1.0"
