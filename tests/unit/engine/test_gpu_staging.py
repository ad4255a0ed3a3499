"""Staging arrays reach the device's fixed places, and only what a step uses is copied."""

from __future__ import annotations

import torch
from weir.engine.gpu_staging import Staging

FIELDS = {"ids": ((3,), torch.int64), "rate": ((2,), torch.float32), "tables": ((4, 5), torch.int32)}


def test_fields_arrive_at_addresses_that_never_change_and_unused_rows_stay() -> None:
    staging = Staging(FIELDS, torch.device("cpu"))
    addresses = {name: tensor.data_ptr() for name, tensor in staging.tensors.items()}
    for step in (1, 2, 3):
        arrays = staging.next()
        arrays["ids"][:] = step
        arrays["rate"][:] = step / 2
        arrays["tables"][:] = step
        staging.upload(last_rows=step)
        assert staging.tensors["ids"].tolist() == [step] * 3
        assert staging.tensors["rate"].tolist() == [step / 2] * 2
        assert staging.tensors["tables"][:, 0].tolist() == [step] * step + [0] * (4 - step)
    assert {name: tensor.data_ptr() for name, tensor in staging.tensors.items()} == addresses


def test_a_buffer_is_not_filled_again_before_the_next_but_one_step() -> None:
    staging = Staging(FIELDS, torch.device("cpu"))
    first, second, third = (staging.next()["ids"] for _ in range(3))
    first[:] = 1
    second[:] = 2
    assert third.tolist() == [1, 1, 1]
