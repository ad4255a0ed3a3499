"""Events that wait for their reader: joined without loss, and counted to the byte that is given back."""

from __future__ import annotations

import queue
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from weir.engine.process import RequestStream
from weir.engine.request import (
    Admitted,
    ChoiceFinish,
    Delta,
    Done,
    Event,
    FinishReason,
    Timings,
    TokenLogprobs,
    Usage,
)
from weir.engine.unread import UnreadEvents, held_bytes, prompt_scores_bytes

ADMITTED = Admitted("r", 3, 0, 0.0, 10)
DONE = Done("r", Usage(3, 10, 0), Timings(0.0, 0.1, 0.2, 0.3))


class Sum:
    """A meter that adds up."""

    def __init__(self) -> None:
        self.bytes = self.exempt_bytes = 0

    def add(self, num_bytes: int, exempt_bytes: int = 0) -> None:
        self.bytes += num_bytes
        self.exempt_bytes += exempt_bytes


def stream(meter: Sum) -> RequestStream:
    client, ticket = SimpleNamespace(_to_send=queue.SimpleQueue()), SimpleNamespace(release=lambda: None)
    return RequestStream(client, "r", ticket, meter)  # type: ignore[arg-type]


def delta(token: int, choice: int, alternatives: int | None, prompt: int = 0) -> Delta:
    top = tuple((other, -1.0) for other in range(alternatives or 0))
    scores = (None, *(TokenLogprobs(i, -1.0, top) for i in range(prompt - 1))) if prompt else None
    logprobs = () if alternatives is None else (TokenLogprobs(token, -0.5, top),)
    return Delta("r", choice, (token,), chr(97 + token % 26) * (token % 3), logprobs, scores)


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """What an engine sends of one request: tokens of its choices in any mixture, each finished with its last."""
    choices, alternatives = draw(st.integers(1, 4)), draw(st.none() | st.integers(0, 3))
    order = draw(st.lists(st.integers(0, choices - 1), min_size=1, max_size=60))
    last = {choice: position for position, choice in enumerate(order)}
    events: list[Event] = [ADMITTED]
    for position, choice in enumerate(order):
        event = delta(position, choice, alternatives, prompt=4 if position == 0 else 0)
        finish = ChoiceFinish(FinishReason.LENGTH) if last[choice] == position else None
        events.append(event._replace(finish=finish))
    return [*events, DONE]


def joined(events: list[Event]) -> dict[int, tuple[object, ...]]:
    """What a client has of each choice in the end."""
    found: dict[int, tuple[object, ...]] = {}
    for event in events:
        if isinstance(event, Delta):
            ids, text, logprobs, finish = found.get(event.choice, ((), "", (), None))
            assert finish is None, "nothing comes after the finish"
            found[event.choice] = (
                (*ids, *event.token_ids),  # type: ignore[misc]
                text + event.text,  # type: ignore[operator]
                (*logprobs, *event.logprobs),  # type: ignore[misc]
                event.finish,
            )
    return found


@given(trace=traces(), reads=st.lists(st.integers(0, 3), max_size=60))
async def test_whenever_it_is_read_the_reader_has_the_same_in_the_end_and_nothing_is_held(
    trace: list[Event], reads: list[int]
) -> None:
    meter = Sum()
    source = stream(meter)
    events = aiter(source)
    got: list[Event] = []
    pauses = iter(reads)
    for event in trace:
        source._push(event)
        for _ in range(next(pauses, 0)):
            if source._unread:
                got.append(await anext(events))
    got += [event async for event in events]
    assert (got[0], got[-1]) == (ADMITTED, DONE)
    assert joined(got) == joined(trace)
    assert sum(prompt_scores_bytes(event) for event in got) == sum(prompt_scores_bytes(event) for event in trace)
    assert (meter.bytes, meter.exempt_bytes) == (0, 0)


@given(trace=traces(), read=st.integers(0, 20))
async def test_a_stream_that_is_closed_anywhere_holds_nothing_and_takes_nothing_more(
    trace: list[Event], read: int
) -> None:
    meter = Sum()
    source = stream(meter)
    for event in trace[: len(trace) // 2 + 1]:
        source._push(event)
    events = aiter(source)
    for _ in range(read):
        if source._unread:
            await anext(events)
    source.close()
    source.close()
    assert (meter.bytes, meter.exempt_bytes) == (0, 0)
    for event in trace[len(trace) // 2 + 1 :]:
        source._push(event)
    assert (meter.bytes, meter.exempt_bytes) == (0, 0)


def test_what_waits_is_counted_by_its_shape() -> None:
    unread = UnreadEvents()
    one, two = delta(1, 0, alternatives=20), delta(2, 0, alternatives=20)
    assert unread.push(one) + unread.push(two) == held_bytes(one) + held_bytes(two) - 300
    assert held_bytes(unread.pop()) == held_bytes(one) + held_bytes(two) - 300
    assert not unread
    # 20 alternatives of 128 bytes and 120 for the token itself, a token with its id, two letters of text, an event.
    assert held_bytes(two) == 20 * 128 + 120 + 60 + 2 + 300
    assert prompt_scores_bytes(delta(1, 0, 20, prompt=10)) == 10 * (20 * 128 + 120)


async def test_a_reader_that_keeps_up_gets_the_very_objects() -> None:
    source = stream(Sum())
    events = aiter(source)
    for event in (ADMITTED, delta(1, 0, None), delta(2, 0, None), DONE):
        source._push(event)
        assert await anext(events) is event
