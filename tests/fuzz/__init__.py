"""Damaged model files, requests and metadata: whatever comes in, a typed error goes out. `make fuzz` runs 100,000."""
