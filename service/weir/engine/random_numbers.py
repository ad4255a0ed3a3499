"""The random number of a token: a function of (seed, position) and of nothing else.

So a seeded request is the same alone, in any batch, at any chunk size, after preemption and on another server.
The generator is counter-based, with the finaliser of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable
pseudorandom number generators"); all arithmetic is unsigned and modulo 2**64, so a kernel can repeat it bit for bit.
docs/sampling.md has the formula and test vectors.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: the increment of SplitMix64
_CHOICE = 0xD1B54A32D192ED03  # odd, unrelated to the increment, so that choices and positions do not overlap


def mix64(z: int) -> int:
    """The finaliser of SplitMix64: a bijection of 64-bit numbers in which every input bit changes every output bit."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of choice `choice` of a request with n > 1. Choice 0 has the request's own seed, as with n = 1."""
    return seed & _MASK if choice == 0 else mix64((seed + choice * _CHOICE) & _MASK)


def stream_key(seed: int) -> int:
    """What `uniform` needs of a seed, mixed once: near seeds give unrelated streams."""
    return mix64((seed + _GOLDEN) & _MASK)


def uniform(key: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits for the token at index `position` (prompt included) of the sequence."""
    return (mix64((key + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53
