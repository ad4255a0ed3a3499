"""Ahead-of-time compilation of the kernels for chips that are not there, and what their machine code looks like."""
