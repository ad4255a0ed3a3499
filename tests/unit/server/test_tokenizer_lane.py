"""One lane over a scripted process: what is tried again, what is refused, and what is never begun."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from weir.engine.errors import UnavailableError
from weir.models.errors import PromptError, TokenizerError
from weir.server import tokenizer_lane
from weir.server.tokenizer_lane import Job, TokenizerLane
from weir.server.tokenizer_process import ProcessEndedError

LIMIT_S = 0.5


class Script:
    """A process whose answers are given in advance: ids, an error, or an event that is waited for and never comes."""

    def __init__(self, *answers: Sequence[int] | Exception | asyncio.Event) -> None:
        self.answers = list(answers)
        self.prompts: list[bytes] = []
        self.starts = 0
        self.ends = 0
        self.start_error: Exception | None = None
        self.clock: Callable[[], float] = lambda: 0.0

    def start(self) -> None:
        self.starts += 1

    async def ready(self) -> Sequence[bytes]:
        if self.start_error is not None:
            raise self.start_error
        return ()

    async def encode(self, prompt: bytes) -> Sequence[int]:
        self.prompts.append(prompt)
        answer = self.answers.pop(0)
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return [0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def computed_s(self) -> float:
        return self.clock()

    async def end(self) -> None:
        self.ends += 1


class Served:
    """A lane at work over a script."""

    def __init__(self, script: Script, limit_s: float) -> None:
        self.script = script
        self.queue: asyncio.Queue[Job] = asyncio.Queue()
        lane = TokenizerLane(script, self.queue, limit_s)  # type: ignore[arg-type]
        self.task = asyncio.create_task(lane.serve())

    def ask(self, prompt: bytes = b"p") -> asyncio.Future[Sequence[int]]:
        answer: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        self.queue.put_nowait(Job(prompt, answer))
        return answer


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Served]]:
    served: list[Served] = []

    def make(*answers: Sequence[int] | Exception | asyncio.Event, limit_s: float = LIMIT_S) -> Served:
        served.append(Served(Script(*answers), limit_s))
        return served[-1]

    yield make
    for lane in served:
        lane.task.cancel()


async def test_prompts_are_answered_in_the_order_they_came(serve: Callable[..., Served]) -> None:
    lane = serve([1], [2], [3])
    assert await asyncio.gather(lane.ask(b"a"), lane.ask(b"b"), lane.ask(b"c")) == [[1], [2], [3]]
    assert lane.script.prompts == [b"a", b"b", b"c"]


async def test_a_prompt_whose_caller_has_gone_is_never_begun(serve: Callable[..., Served]) -> None:
    held = asyncio.Event()
    lane = serve(held, [3])
    first, gone, last = lane.ask(b"a"), lane.ask(b"b"), lane.ask(b"c")
    gone.cancel()
    held.set()
    assert (await first, await last) == ([0], [3])
    assert lane.script.prompts == [b"a", b"c"]


async def test_a_refusal_is_its_own_prompts_alone_and_leaves_the_process(serve: Callable[..., Served]) -> None:
    lane = serve(PromptError("no such role"), [2])
    first, second = lane.ask(), lane.ask()
    with pytest.raises(PromptError, match="no such role"):
        await first
    assert await second == [2]
    assert (lane.script.ends, lane.script.starts) == (0, 0)


async def test_an_exception_nobody_expected_reaches_the_caller_and_the_lane_goes_on(
    serve: Callable[..., Served],
) -> None:
    lane = serve(RuntimeError("inside"), [2])
    first, second = lane.ask(), lane.ask()
    with pytest.raises(RuntimeError, match="inside"):
        await first
    assert await second == [2]


@pytest.mark.parametrize("exit_code", [-signal.SIGKILL, -signal.SIGTERM, None])
async def test_a_prompt_whose_process_others_ended_is_tokenised_by_the_next(
    serve: Callable[..., Served], exit_code: int | None
) -> None:
    lane = serve(ProcessEndedError(exit_code), [7])
    assert await lane.ask(b"p") == [7]
    assert lane.script.prompts == [b"p", b"p"]
    assert lane.script.starts == 1


async def test_a_prompt_is_not_tried_for_ever(serve: Callable[..., Served]) -> None:
    lane = serve(ProcessEndedError(-signal.SIGKILL), ProcessEndedError(-signal.SIGKILL), [7])
    with pytest.raises(PromptError):
        await lane.ask(b"bad")
    assert await lane.ask(b"good") == [7]
    assert lane.script.prompts == [b"bad", b"bad", b"good"]


@pytest.mark.parametrize("exit_code", [-signal.SIGABRT, -signal.SIGSEGV, 1])
async def test_a_prompt_that_ended_its_process_is_refused_at_once(serve: Callable[..., Served], exit_code: int) -> None:
    lane = serve(ProcessEndedError(exit_code), [7])
    with pytest.raises(PromptError, match="its process ended"):
        await lane.ask(b"bad")
    assert await lane.ask(b"good") == [7]
    assert lane.script.prompts == [b"bad", b"good"]


async def test_a_prompt_that_computes_for_too_long_is_refused_and_its_process_replaced(
    serve: Callable[..., Served],
) -> None:
    lane = serve(asyncio.Event(), [7])
    lane.script.clock = asyncio.get_running_loop().time
    with pytest.raises(PromptError, match=r"takes more than 0\.5 s to tokenise"):
        await lane.ask(b"bad")
    assert await lane.ask(b"good") == [7]
    assert (lane.script.ends, lane.script.starts) == (1, 1)


async def test_a_process_that_waits_for_a_core_is_given_more_time(serve: Callable[..., Served]) -> None:
    held = asyncio.Event()
    lane = serve(held)
    began = asyncio.get_running_loop().time()
    # One second of computing takes ten: the limit is then at 5 s.
    lane.script.clock = lambda: (asyncio.get_running_loop().time() - began) / 10
    answer = lane.ask()
    await asyncio.sleep(3 * LIMIT_S)
    held.set()
    assert await answer == [0]
    assert lane.script.ends == 0


async def test_a_process_that_computes_nothing_is_replaced_and_its_prompt_tried_again(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_lane, "_HANGS_AFTER", 2)
    lane = serve(asyncio.Event(), [7])
    assert await lane.ask() == [7]
    assert (lane.script.ends, lane.script.starts) == (1, 1)


async def test_a_prompt_goes_on_only_a_little_when_its_caller_has_gone(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_lane, "ABANDONED_S", 0.1)
    lane = serve(asyncio.Event(), [7], limit_s=1e6)
    lane.script.clock = asyncio.get_running_loop().time
    gone, other = lane.ask(b"long"), lane.ask(b"other")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(30):
        assert await other == [7]
    assert lane.script.ends == 1


async def test_a_process_that_cannot_be_started_again_is_a_fault_of_the_server_not_of_the_prompt(
    serve: Callable[..., Served],
) -> None:
    lane = serve(ProcessEndedError(-signal.SIGKILL), [7])
    lane.script.start_error = TokenizerError("tokenizer.json is gone")
    with pytest.raises(UnavailableError) as refused:
        await lane.ask()
    assert refused.value.reason == "TOKENIZER_FAILED"
    lane.script.start_error = None
    assert await lane.ask() == [7]
