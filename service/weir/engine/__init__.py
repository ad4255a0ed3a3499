"""Scheduling and execution: no transport, no tracing, no cluster."""
