"""A model name becomes a local folder: the demo model, a hub repository, or a folder that is there already."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from weir.models import demo_model
from weir.models.errors import FetchError, UnknownModelError
from weir.models.explain import FETCHED, HUB_ID
from weir.models.folder import build_folder, check_model_folder, is_model_folder
from weir.models.origin import Origin, begin_download
from weir.progress import Progress

DEFAULT_REVISION = "main"
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "LICENSE*", "README.md"]


def print_progress(message: str) -> None:
    """The default `progress`: one line a stage on stderr, so that stdout stays free for the result."""
    print(f"weir fetch: {message}", file=sys.stderr, flush=True)


def fetch(
    name: str,
    dest_root: str | Path = FETCHED,
    progress: Callable[[str], None] = print_progress,
    *,
    revision: str | None = None,
) -> Path:
    """Return a folder with the model `name`, building or downloading it under `dest_root` when it is not there.

    name: an existing folder (returned as it is), `smollm2-135m-instruct`, or a hub id `org/name`.
    revision: branch, tag or commit of a hub repository; each has a folder of its own, `org/name@revision`.
    It can be killed at any moment and run again: finished parts are kept, and the folder appears only when complete.
    What is downloaded says in `weir-origin.json` of which commit it is.

    Raises FetchError when the model cannot be had, ModelFolderError when a local folder or a download is unusable.
    """
    target = folder_of(name, dest_root, revision)
    if target == Path(name):
        check_model_folder(target)
        return target
    if is_model_folder(target):
        progress(f"{target} is complete")
        return target
    if name == demo_model.NAME:
        downloads = target.with_name(f".{target.name}.downloads")
        downloads.mkdir(parents=True, exist_ok=True)
        with _lines_instead_of_bars(f"building {target}", progress):
            build_folder(target, lambda partial: demo_model.build_demo_model(partial, downloads, progress), progress)
    else:
        # The hub client keeps what it has in the partial folder, so an interrupted download goes on where it stopped.
        with _lines_instead_of_bars(f"downloading {name}", progress):
            build_folder(target, lambda partial: _from_hub(name, revision, partial, progress), progress, resume=True)
    progress(f"{target} is complete")
    return target


def folder_of(name: str, dest_root: str | Path = FETCHED, revision: str | None = None) -> Path:
    """Where the model `name` is, or will be once it is fetched. Raises FetchError for what cannot be had."""
    if name and Path(name).exists():
        return Path(name)
    if name != demo_model.NAME and not HUB_ID.fullmatch(name):
        raise UnknownModelError(f"{name!r} is not a folder, not {demo_model.NAME!r} and not a hub id like 'org/name'")
    if revision and name == demo_model.NAME:
        raise FetchError(f"{name!r} has no revisions; --revision goes with a hub id like 'org/name'")
    return Path(dest_root) / (f"{name}@{revision.replace('/', '-')}" if revision else name)


@contextmanager
def _lines_instead_of_bars(what: str, progress: Callable[[str], None]) -> Iterator[None]:
    """The libraries draw bars, which are for terminals; a log gets a line now and then."""
    if sys.stderr.isatty():
        yield
        return
    # Both are read when their libraries are imported, which happens inside.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    with Progress(what, say=progress):
        yield


def _from_hub(repo_id: str, revision: str | None, folder: Path, progress: Callable[[str], None]) -> None:
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError as error:
        raise FetchError(
            f"downloading from the hub needs the 'fetch' extra: pip install 'weir-llm[fetch]' ({error})"
        ) from None
    at = f" at {revision}" if revision else ""
    progress(f"downloading {repo_id}{at} from the hub")
    try:
        # A branch may move while its files are downloaded, or before an interrupted download goes on.
        commit = HfApi().model_info(repo_id, revision=revision).sha
        origin = Origin(repo_id, revision or DEFAULT_REVISION, commit or revision or DEFAULT_REVISION)
        begin_download(folder, origin)
        snapshot_download(repo_id, revision=origin.commit, local_dir=folder, allow_patterns=_HUB_FILES)
    except Exception as error:  # the client lets the errors of its HTTP library through
        raise FetchError(f"cannot download {repo_id}{at}: {' '.join(str(error).split())}") from error
    progress(f"this is {origin}")
