"""Threads that wait until a core is free: who becomes one, and that nothing breaks where there are none."""

from __future__ import annotations

import os
import threading

import pytest
from weir.server.scheduling import patient_threads


def policy_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return found[0]


def test_only_threads_that_are_started_inside_are_patient() -> None:
    with patient_threads():
        assert policy_of_a_new_thread() == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert policy_of_a_new_thread() == os.SCHED_OTHER


def test_the_policy_comes_back_after_an_error() -> None:
    with pytest.raises(KeyError), patient_threads():
        raise KeyError
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_system_that_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with patient_threads():
        assert policy_of_a_new_thread() == os.SCHED_OTHER


def test_a_system_without_policies_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setscheduler")
    with patient_threads():
        assert policy_of_a_new_thread() == os.SCHED_OTHER
