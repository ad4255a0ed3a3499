"""How large a request may be, known before it is parsed: nothing a client sends is looked at beyond these numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from weir.config import Settings

# Languages and code take 2 to 8 bytes a token; only long runs of one character take more.
BYTES_PER_TOKEN = 16
# Everything but prompt and parameters: request_id, model, cache_salt, numbers, and what else a message may carry.
REST_BYTES = 8 * 2**10
# Requests of methods that carry no prompt.
OTHER_BYTES = 4 * 2**10

# On the wire: tag and length of a string, an id as a negative number, a map entry with such an id and a double.
_STRING_BYTES, _ID_BYTES, _BIAS_BYTES = 6, 11, 22
_CHARACTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Bounds on the parts of a request.

    prompt_bytes: UTF-8 bytes of a text, or all bytes of a conversation as it is sent,
    prompt_entries: token ids or turns; each turn is a token at least,
    params_bytes: the sampling parameters as they are sent,
    response_bytes: an answer.
    """

    prompt_bytes: int
    prompt_entries: int
    params_bytes: int
    response_bytes: int

    @classmethod
    def of(cls, settings: Settings, max_model_len: int) -> Self:
        """The limits for a model of this length."""
        engine = settings.engine
        strings = engine.max_stop_strings * (_STRING_BYTES + _CHARACTER_BYTES * engine.max_stop_string_chars)
        ids = engine.max_stop_strings * _ID_BYTES
        return cls(
            prompt_bytes=settings.server.max_prompt_bytes or BYTES_PER_TOKEN * max_model_len,
            prompt_entries=max_model_len,
            params_bytes=strings + ids + engine.max_logit_bias * _BIAS_BYTES + REST_BYTES,
            response_bytes=settings.server.max_message_bytes,
        )

    @property
    def request_bytes(self) -> int:
        """A whole request."""
        return self.prompt_bytes + self.params_bytes + REST_BYTES
