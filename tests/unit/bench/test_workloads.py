"""Where the requests of `weir bench` come from: files, random ids, conversations; and what is refused before a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from weir.bench.random_prompts import RandomPrompts
from weir.bench.sharegpt import ShareGpt
from weir.bench.workload import Served, WorkItem, Workload, WorkloadError, check_fits, read_workload

Write = Callable[[Any], Path]


def served(vocab_size: int = 1000, max_model_len: int = 100) -> Served:
    """A model whose tokens are words; a conversation begins with two more."""

    def encode(text: str) -> list[int]:
        if "\0" in text:
            raise ValueError("the tokenizer takes no zero")
        return [len(word) for word in text.split()]

    return Served(vocab_size, max_model_len, encode, lambda said: [1, 2, *encode(said)], (ValueError,))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Put a value into a file, as JSON unless it is bytes."""

    def put(content: Any) -> Path:
        path = tmp_path / "file.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return put


class TestFile:
    """`--workload FILE`."""

    def test_requests_are_read_in_order(self, write: Write) -> None:
        requests = [{"prompt_token_ids": [1, 2], "max_tokens": 3}, {"prompt_token_ids": [4], "max_tokens": 5}]
        workload = read_workload(write({"name": "two", "requests": requests}))
        assert workload == Workload("two", (WorkItem((1, 2), 3), WorkItem((4,), 5)))
        assert (workload.prompt_tokens, workload.output_tokens) == (3, 8)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"{", "is not JSON"),
            (b"\xff\xfe\x00", "is not JSON"),
            (b"[" * 100_000, "is not JSON"),
            ([], "is no workload: expected"),
            ({"requests": 5}, "is no workload: expected"),
            ({"conversations": []}, "is no workload: expected"),
            ({"requests": []}, "has no requests"),
            ({"requests": ["x"]}, "request 0 needs prompt_token_ids"),
            ({"requests": [{"prompt_token_ids": [], "max_tokens": 1}]}, "request 0 needs prompt_token_ids"),
            ({"requests": [{"prompt_token_ids": [1.5], "max_tokens": 1}]}, "request 0 needs prompt_token_ids"),
            ({"requests": [{"prompt_token_ids": ["1"], "max_tokens": 1}]}, "request 0 needs prompt_token_ids"),
            ({"requests": [{"prompt_token_ids": [1]}]}, "request 0 needs max_tokens"),
            ({"requests": [{"prompt_token_ids": [1], "max_tokens": 0}]}, "request 0 needs max_tokens"),
            ({"requests": [{"prompt_token_ids": [1], "max_tokens": True}]}, "request 0 needs max_tokens"),
        ],
    )
    def test_other_json_is_refused_with_what_is_expected(self, write: Write, content: Any, said: str) -> None:
        path = write(content)
        with pytest.raises(WorkloadError, match=said) as caught:
            read_workload(path)
        assert str(path) in str(caught.value)

    def test_a_file_that_is_not_there_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match="No such file or directory"):
            read_workload(tmp_path / "none")

    def test_what_the_model_can_never_take_is_known_before_the_run(self) -> None:
        # 98 prompt tokens and 3 of output: the last is never computed, so 100 places are enough.
        check_fits(Workload("w", (WorkItem((1,) * 98, 3),)), served())
        with pytest.raises(WorkloadError, match="request 1 of w takes 101 tokens of context, and the model has 100"):
            check_fits(Workload("w", (WorkItem((1,), 1), WorkItem((1,) * 98, 4))), served())
        for token in (-1, 1000):
            with pytest.raises(WorkloadError, match=f"token id {token}, and the model's are 0 to 999"):
                check_fits(Workload("w", (WorkItem((token,), 1),)), served())


class TestRandom:
    """`--random N,IN,OUT`."""

    def test_every_request_has_the_lengths_asked_for_and_ids_of_the_vocabulary(self) -> None:
        workload = RandomPrompts.parse("5,7,3")(served(vocab_size=200))
        assert [len(item.prompt_token_ids) for item in workload.items] == [7] * 5
        assert [item.max_tokens for item in workload.items] == [3] * 5
        assert all(100 <= token < 200 for item in workload.items for token in item.prompt_token_ids)
        assert len({item.prompt_token_ids for item in workload.items}) == 5

    def test_a_seed_makes_the_same_prompts_again(self) -> None:
        first, again, other = (RandomPrompts(3, 9, 1, seed)(served()).items for seed in (1, 1, 2))
        assert first == again
        assert first != other

    def test_a_vocabulary_smaller_than_the_control_tokens_is_used_too(self) -> None:
        workload = RandomPrompts(1, 50, 1)(served(vocab_size=8))
        assert {token for item in workload.items for token in item.prompt_token_ids} == {4, 5, 6, 7}

    @pytest.mark.parametrize("text", ["", "1", "1,2", "1,2,3,4", "a,b,c", "1,2,-3", "1,0,3", "1.5,2,3", "²,1,1"])
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="must be"):
            RandomPrompts.parse(text)


class TestShareGpt:
    """`--dataset FILE`."""

    @staticmethod
    def conversation(*turns: tuple[str, object]) -> dict[str, object]:
        return {"id": "x", "conversations": [{"from": speaker, "value": said} for speaker, said in turns]}

    def test_the_first_turn_is_the_prompt_and_its_reply_the_length(self, write: Write) -> None:
        path = write([self.conversation(("human", "a bb ccc"), ("gpt", "dddd eeeee"), ("human", "more"))])
        workload = ShareGpt.read(path, requests=10, seed=0)(served())
        # Two words of the template and three of the turn; the reply has two.
        assert workload.items == (WorkItem((1, 2, 1, 2, 3), 2, said="a bb ccc"),)
        assert workload.name == "file"

    def test_system_turns_come_before_and_other_spellings_are_read(self, write: Write) -> None:
        turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
        path = write([{"messages": [*turns, {"role": "assistant", "content": "yes"}]}])
        [item] = ShareGpt.read(path, 10, 0)(served()).items
        assert (item.said, item.max_tokens) == ("hi", 1)

    def test_conversations_without_an_answer_to_a_human_are_left_out(self, write: Write) -> None:
        path = write(
            [
                self.conversation(("gpt", "alone")),
                self.conversation(("human", "nobody")),
                self.conversation(("human", "a"), ("human", "b")),
                self.conversation(("human", " "), ("gpt", "b")),
                self.conversation(("human", 5), ("gpt", "b")),
                self.conversation(("human", "kept"), ("gpt", "b")),
                "no conversation",
                {"conversations": 5},
                {"conversations": ["no turn"]},
            ]
        )
        assert [item.said for item in ShareGpt.read(path, 10, 0)(served()).items] == ["kept"]

    def test_those_too_long_for_the_model_are_passed_over_until_there_are_enough(self, write: Write) -> None:
        short = [self.conversation(("human", f"turn {number}"), ("gpt", "yes")) for number in range(5)]
        long = [self.conversation(("human", f"long {number}"), ("gpt", "word " * 200)) for number in range(20)]
        refused = [self.conversation(("human", "\0"), ("gpt", "b"))]
        path = write([*long, *refused, *short])
        said = {item.said for item in ShareGpt.read(path, 5, 0)(served()).items}
        assert said == {f"turn {number}" for number in range(5)}

    def test_the_seed_chooses_which(self, write: Write) -> None:
        path = write([self.conversation(("human", f"turn {number}"), ("gpt", "yes")) for number in range(50)])
        chosen = [[item.said for item in ShareGpt.read(path, 5, seed)(served()).items] for seed in (0, 0, 1)]
        assert chosen[0] == chosen[1]
        assert chosen[0] != chosen[2]

    @pytest.mark.parametrize("content", [{}, [], [1, 2], {"requests": []}, [{"conversations": []}]])
    def test_other_json_is_refused(self, write: Write, content: Any) -> None:
        with pytest.raises(WorkloadError, match="no conversation in which a human"):
            ShareGpt.read(write(content), 1, 0)

    def test_a_model_that_takes_none_of_them_says_why(self, write: Write) -> None:
        with pytest.raises(WorkloadError, match=r"takes no conversation of .*file\.json: the tokenizer takes no zero"):
            ShareGpt.read(write([self.conversation(("human", "\0"), ("gpt", "b"))]), 1, 0)(served())
        with pytest.raises(WorkloadError, match="all are too long"):
            ShareGpt.read(write([self.conversation(("human", "a"), ("gpt", "b " * 500))]), 1, 0)(served())
