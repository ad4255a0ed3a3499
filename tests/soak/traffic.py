"""Mixed requests of two tenants, each with its one end; and what was answered, to be computed again alone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weir.client import AsyncClient, RequestCancelledError, ServerError, WeirError

_WORDS = ("the", "river", "runs", "to", "a", "sea", "and", "its", "weir", "holds", "water", "at", "one", "set", "level")
_MOST_KEPT = 20_000
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Answer:
    """A request whose output depends on nothing but itself, and the tokens of its choices."""

    prompt: str
    options: Mapping[str, Any]
    token_ids: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Ledger:
    """begun: requests that were sent. ends: how each ended; together as many. wrong: what must not have been."""

    begun: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def end(self, how: str) -> None:
        """Count the one end of a request."""
        self.ends[how] += 1


@dataclass(slots=True)
class Client:
    """One of many that ask in turn, until `until` is set."""

    connection: AsyncClient
    tenant: str
    dice: random.Random
    ledger: Ledger

    async def ask_until(self, until: asyncio.Event) -> None:
        """One request after the other."""
        while not until.is_set():
            await self.one()
            await asyncio.sleep(self.dice.random() * _PAUSE_S)

    async def one(self) -> None:
        """One request of random kind."""
        prompt, options = _prompt(self.dice), _options(self.dice)
        timeout_s = self.dice.choice((None, None, None, 0.05, 1.0, 60.0))
        behaviour = self.dice.choice(("stream", "stream", "unary", "unary", "cancel", "close"))
        self.ledger.begun += 1
        asked_to_end = False
        try:
            if behaviour == "unary":
                completion = await self.connection.complete(prompt, timeout_s=timeout_s, **options)
                self._done(prompt, options, [choice.token_ids for choice in completion.choices])
                return
            stream = self.connection.generate(prompt, timeout_s=timeout_s, **options)
            async with stream:
                tokens: list[list[int]] = [[] for _ in range(options.get("n", 1))]
                finishes: Counter[int] = Counter()
                async for delta in stream:
                    if finishes[delta.choice]:
                        self.ledger.wrong.append("tokens after the end of a choice")
                    tokens[delta.choice] += delta.token_ids
                    finishes[delta.choice] += delta.finish_reason is not None
                    if behaviour == "close" and sum(map(len, tokens)) > 4:
                        self.ledger.end("closed by the client")
                        return
                    if behaviour == "cancel" and not asked_to_end and stream.request_id is not None:
                        asked_to_end = await self.connection.cancel(stream.request_id)
            if stream.usage is None or any(finishes[choice] != 1 for choice in range(len(tokens))):
                self.ledger.wrong.append(f"a stream ended with {dict(finishes)} ends of its {len(tokens)} choices")
            self._done(prompt, options, tokens)
        except WeirError as error:
            self._failed(error, asked_to_end)
        except Exception as error:
            self.ledger.wrong.append(f"an untyped error: {error!r}")
            self.ledger.end("untyped")

    def _failed(self, error: WeirError, asked_to_end: bool) -> None:
        if isinstance(error, ServerError) or (isinstance(error, RequestCancelledError) and not asked_to_end):
            self.ledger.wrong.append(f"{error!r}")
        self.ledger.end(f"{error.code} {error.reason or ''}".strip())

    def _done(self, prompt: str, options: Mapping[str, Any], tokens: Sequence[Sequence[int]]) -> None:
        self.ledger.end("OK")
        if len(self.ledger.answers) < _MOST_KEPT and (options["temperature"] == 0 or "seed" in options):
            self.ledger.answers.append(Answer(prompt, options, tuple(tuple(part) for part in tokens)))


async def unequal_alone(connection: AsyncClient, answers: Sequence[Answer]) -> list[Answer]:
    """Those whose tokens are others when they are computed alone."""
    different = []
    for answer in answers:
        again = await connection.complete(answer.prompt, **answer.options)
        if tuple(choice.token_ids for choice in again.choices) != answer.token_ids:
            different.append(answer)
    return different


def _prompt(dice: random.Random) -> str:
    shared = "You are a keeper of rivers. Answer in one short sentence. " if dice.random() < 0.4 else ""
    return shared + " ".join(dice.choices(_WORDS, k=dice.choice((1, 5, 20, 80, 200))))


def _options(dice: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_tokens": dice.choice((1, 4, 16, 40)),
        "temperature": dice.choice((0.0, 0.7, 1.0)),
        "priority": dice.choice((0, 5, 5, 9)),
        "ignore_eos": dice.random() < 0.5,
    }
    if dice.random() < 0.7:
        options["seed"] = dice.randrange(2**64)
    if dice.random() < 0.2:
        options["n"] = dice.choice((2, 3))
    if dice.random() < 0.2:
        options["logprobs"] = dice.choice((0, 5, 20))
    if dice.random() < 0.1:
        options["prompt_logprobs"] = 2
    if dice.random() < 0.2:
        options["stop"] = [dice.choice(("river", "the", "\n", ". "))]
    if dice.random() < 0.2:
        options |= {"top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1}
    return options
