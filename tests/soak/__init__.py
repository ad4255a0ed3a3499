"""A server under everything that clients do to it, for as long as is asked: `make soak`."""
