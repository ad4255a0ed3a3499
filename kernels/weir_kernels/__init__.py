"""Attention, norm, rotary, activation and sampling kernels; depends on torch and triton only."""
