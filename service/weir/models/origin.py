"""Where a downloaded model comes from, to the commit: a file beside its weights, written before the first of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from weir.models.errors import ModelFolderError
from weir.models.json_file import read_json

ORIGIN_FILE = "weir-origin.json"


@dataclass(frozen=True, slots=True)
class Origin:
    """A hub repository. revision: the branch, tag or commit that was asked for; commit: what that was then."""

    repository: str
    revision: str
    commit: str

    def __str__(self) -> str:
        asked = "" if self.revision == self.commit else f" ({self.revision})"
        return f"{self.repository} at {self.commit}{asked}"


def read_origin(folder: Path) -> Origin | None:
    """What the folder says of itself; None for one that was not downloaded, or that somebody has written into."""
    try:
        fields = read_json(folder / ORIGIN_FILE)
        return Origin(*(str(fields[name]) for name in ("repository", "revision", "commit")))
    except (ModelFolderError, KeyError):
        return None


def begin_download(folder: Path, origin: Origin) -> None:
    """Write the origin into a folder that is empty or half filled; files of another commit are removed first."""
    if read_origin(folder) != origin:
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    (folder / ORIGIN_FILE).write_text(json.dumps(asdict(origin), indent=2) + "\n")
