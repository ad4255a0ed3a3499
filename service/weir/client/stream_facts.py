"""What a token stream tells besides its tokens; the same for threads and asyncio."""

from __future__ import annotations

from weir.client.replies import StreamState
from weir.client.values import Timings, TokenLogprob, Usage


class StreamFacts:
    """Read-only view of a stream's state."""

    def __init__(self, state: StreamState) -> None:
        self._state = state

    @property
    def request_id(self) -> str | None:
        """The id that `cancel` takes; the server may have changed one that was taken, which the first delta tells."""
        return self._state.request_id

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens in the prompt; known from the first delta on."""
        return self._state.prompt_tokens

    @property
    def cached_tokens(self) -> int | None:
        """How many of them were in the prefix cache; known from the first delta on."""
        return self._state.cached_tokens

    @property
    def max_tokens(self) -> int | None:
        """Most tokens that each choice may get; known from the first delta on."""
        return self._state.max_tokens

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """One for each prompt token, when asked for; known from the first delta on."""
        return self._state.prompt_logprobs

    @property
    def usage(self) -> Usage | None:
        """Token counts; known at the end."""
        return self._state.usage

    @property
    def timings(self) -> Timings | None:
        """Durations; known at the end."""
        return self._state.timings
