"""Measurements of weir and of its peers. Run from the repository's root, as in `python -m benchmarks.suite`."""
