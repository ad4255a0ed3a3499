"""Whether a compiled library may be loaded: only from this user, or root, and only as it was compiled."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(Exception):
    """Somebody else could have put there what would be run; the message says who, and where."""


def own_folder(folder: Path) -> None:
    """Make the folder, for this user alone. Raises UntrustedError for one of somebody else, and OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid == os.geteuid():
        if status.st_mode & _WRITABLE_BY_OTHERS:
            folder.chmod(0o700)
    elif status.st_uid != 0:
        raise UntrustedError(f"it belongs to user {status.st_uid}; set WEIR_CACHE_DIR to a folder of your own")
    elif status.st_mode & _WRITABLE_BY_OTHERS:
        raise UntrustedError("others can write into it; set WEIR_CACHE_DIR to a folder of your own")


def open_trusted(library: Path) -> int | None:
    """A descriptor of the library, for the caller to close; None when it is not there, or not as it was recorded.

    Raises UntrustedError for a file that somebody else owns or can change.
    """
    try:
        descriptor = os.open(library, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UntrustedError(f"{library.name} is no file: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & _WRITABLE_BY_OTHERS:
            mode = stat.S_IMODE(status.st_mode)
            raise UntrustedError(f"{library.name} belongs to user {status.st_uid}, mode {mode:04o}: remove it")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            as_recorded = hashlib.file_digest(file, "sha256").hexdigest() == _recorded(library)
    except BaseException:
        os.close(descriptor)
        raise
    if as_recorded:
        return descriptor
    os.close(descriptor)
    return None


def record(compiled: Path, library: Path) -> None:
    """Write down what `compiled` holds, before it becomes `library`."""
    with compiled.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    fresh = compiled.with_suffix(".sha256")
    fresh.write_text(digest + "\n")
    fresh.chmod(0o644)
    fresh.replace(_record_of(library))


def is_recorded(library: Path) -> bool:
    """Whether the library is there, as it was recorded."""
    with suppress(OSError), library.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == _recorded(library)
    return False


def _record_of(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _recorded(library: Path) -> str | None:
    with suppress(OSError):
        return _record_of(library).read_text().strip()
    return None
