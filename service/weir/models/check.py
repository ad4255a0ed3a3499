"""Everything about a model that can be known without reading its weights; known before anything slow begins."""

from __future__ import annotations

import logging
from pathlib import Path

from weir.models.checkpoint import find_checkpoint
from weir.models.end_tokens import end_tokens
from weir.models.explain import TOKENIZER
from weir.models.origin import read_origin
from weir.models.spec import ModelSpec
from weir.models.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


def check_model(folder: Path, *, random_weights: bool = False) -> None:
    """Raise a ModelError that says in a sentence what is wrong and what to do; else log what had to be decided.

    random_weights: the folder needs neither weights nor tokenizer.
    """
    spec = ModelSpec.from_folder(folder)
    if origin := read_origin(folder):
        _log.info("the model is %s", origin)
    if not random_weights and (note := find_checkpoint(folder, spec).note):
        _log.warning("%s", note)
    tokenizer = open_tokenizer(folder, random_weights=random_weights)
    ends = end_tokens(folder, tokenizer)
    if disagreement := ends.disagreement():
        _log.log(logging.WARNING if ends.beyond_transformers else logging.INFO, "%s", disagreement)
    behind = None if tokenizer is None else tokenizer.ends_answers_with()
    if tokenizer is not None and behind is not None and behind not in ends.ids:
        _log.warning(
            "the chat template ends an answer with %s, which no file names as an end token: if the model says it, an "
            "answer goes on; add %d to eos_token_id in generation_config.json, or to stop_token_ids of requests",
            tokenizer.token_bytes[behind].decode(errors="replace"),
            behind,
        )


def open_tokenizer(folder: Path, *, random_weights: bool = False) -> Tokenizer | None:
    """The folder's tokenizer. None: random weights of a bare config take token ids. Raises ModelError."""
    if random_weights and not (folder / TOKENIZER).exists():
        return None
    return Tokenizer(folder)
