"""Traces and metrics, made from step records off the hot path."""
