"""Measures throughput and latency of a workload, in process or against a server."""
