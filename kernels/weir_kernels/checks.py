"""What every kernel wrapper refuses: a tensor the kernel would read wrongly."""

from __future__ import annotations


def require(condition: bool, message: str) -> None:
    """Raises ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)
