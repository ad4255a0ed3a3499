"""The thread count is what the container may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from weir_kernels.cpu import threads


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def quota(tmp_path: Path, membership: str) -> float | None:
    write(tmp_path / "membership", membership)
    return threads.cgroup_cpu_quota(tmp_path / "cgroup", tmp_path / "membership")


def test_no_cgroup_means_no_quota(tmp_path: Path) -> None:
    assert threads.cgroup_cpu_quota(tmp_path, tmp_path / "missing") is None
    assert quota(tmp_path, "0::/\n") is None


def test_a_v2_quota_is_quota_over_period(tmp_path: Path) -> None:
    write(tmp_path / "cgroup/pod/cpu.max", "150000 100000\n")
    assert quota(tmp_path, "0::/pod\n") == 1.5


def test_a_v2_group_without_a_limit_inherits_the_lowest_above_it(tmp_path: Path) -> None:
    write(tmp_path / "cgroup/cpu.max", "max 100000\n")
    write(tmp_path / "cgroup/pod/cpu.max", "400000 100000\n")
    write(tmp_path / "cgroup/pod/box/cpu.max", "max 100000\n")
    assert quota(tmp_path, "0::/pod/box\n") == 4.0


def test_a_container_sees_its_own_v2_group_as_the_root(tmp_path: Path) -> None:
    write(tmp_path / "cgroup/cpu.max", "200000 100000\n")
    assert quota(tmp_path, "0::/../../kubepods/pod1/box\n") == 2.0


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_a_v1_quota_is_quota_over_period_and_minus_one_is_none(tmp_path: Path, controllers: str) -> None:
    group = tmp_path / "cgroup" / controllers
    write(group / "cpu.cfs_quota_us", "-1\n")
    write(group / "cpu.cfs_period_us", "100000\n")
    lines = f"5:memory:/box\n4:{controllers}:/box\n"
    assert quota(tmp_path, lines) is None
    write(group / "box/cpu.cfs_quota_us", "50000\n")
    write(group / "box/cpu.cfs_period_us", "25000\n")
    assert quota(tmp_path, lines) == 2.0


@pytest.mark.parametrize(("limit", "expected"), [(None, 4), (0.5, 1), (1.0, 1), (2.5, 3), (64.0, 4)])
def test_threads_are_the_quota_rounded_up_within_the_affinity(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4, 5})
    monkeypatch.setattr(threads, "cgroup_cpu_quota", lambda: limit)
    assert threads.compute_threads() == expected
