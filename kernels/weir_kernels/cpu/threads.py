"""How many threads to compute with: what the container may use, not what the host has."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc/self/cgroup")


def compute_threads() -> int:
    """CPUs this process may use: its affinity mask, lowered by the quota of its cgroup and of every cgroup above."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = cgroup_cpu_quota()
    return allowed if quota is None else max(1, min(allowed, ceil(quota)))


def cgroup_cpu_quota(root: Path = _CGROUP_ROOT, membership: Path = _PROC) -> float | None:
    """CPUs that the cgroup quotas (v2 `cpu.max`, v1 `cpu.cfs_quota_us`) leave, None without a limit.

    root: where the cgroup file system is mounted; membership: a file like /proc/self/cgroup.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += [_quota_v2(folder) for folder in _chain(root, path)]
        elif "cpu" in controllers.split(","):
            for mount in (root / "cpu", root / "cpu,cpuacct"):
                quotas += [_quota_v1(folder) for folder in _chain(mount, path)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _chain(mount: Path, path: str) -> list[Path]:
    # In a container the group may be mounted as the root itself, so that its own path does not exist below it.
    folders = [mount]
    for part in Path(path).parts[1:]:
        folders.append(folders[-1] / part)
    return folders


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if quota <= 0 else quota / period
