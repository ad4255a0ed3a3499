"""Tells whether a file is another one than before."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int, int]


def stamp_of(path: Path) -> Stamp:
    """Changes when the file does; zeros for one that is not there."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0, 0)
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
