"""How much host memory a process may still take, by its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import host_memory

MIB = 2**20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process 7 in the group a/b."""
    monkeypatch.setattr(host_memory, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(host_memory, "PROCESSES", tmp_path / "proc")
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text("0::/a/b\n")
    (tmp_path / "cgroup" / "a" / "b").mkdir(parents=True)
    return tmp_path / "cgroup"


def limit(group: Path, most: str, now: int) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{now}\n")


def test_without_a_limit_there_is_no_shortage(groups: Path) -> None:
    assert host_memory.shortage(7, 2**50) == ""
    limit(groups / "a" / "b", "max", 5)
    assert host_memory.shortage(7, 2**50) == ""
    assert host_memory.shortage(8, 2**50) == "", "a process that has gone"


def test_the_tightest_group_counts(groups: Path) -> None:
    limit(groups / "a" / "b", str(100 * MIB), 10 * MIB)
    limit(groups / "a", str(60 * MIB), 20 * MIB)
    assert host_memory.shortage(7, 40 * MIB) == ""
    found = host_memory.shortage(7, 41 * MIB)
    assert found == "its control group has 40 MiB of host memory left, and 41 MiB would go there"
