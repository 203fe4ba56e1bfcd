"""The day on a software driver with its switches set the other way: each difference is found, by its assumption."""

from __future__ import annotations

import re

import pytest

from gpuday.test_gpuday import ROOT, play

SWITCHES = ROOT / "shim" / "sim" / "switches.def"

BREAKS = {
    "blocks": "blocks",
    "pool_step": "pool-steps",
    "pool_drop": "pool-returns",
    "graph_step": "graph-steps",
    "importers": "importers",
    "procaddr": "one-address",
    "reset": "reset",
    "contexts": "second-context",
    "modules": "first-kernel",
    "heaps": "heap",
    "captures": "captures",
    "pids": "pids",
    "suspended": "waits-suspended",
}
"""Switch -> the assumption that its other values break."""
OF_TIME = {"kernels"}
"""Switches about a GPU's time: no assumption about memory depends on them."""

CHECKS = (
    "look-ups",
    "captures",
    "context-overhead",
    "granularity",
    "pool-growth",
    "reset",
    "sharing",
    "odds",
    "suspension",
)
PARTS = ("driver", "heap")


def values() -> dict[str, tuple[str, ...]]:
    """Switch -> what it may be set to; the usual value first."""
    rows = re.findall(r"^SIM_SWITCH\((\w+), (\w+), (\w+), (\w+),", SWITCHES.read_text(), re.MULTILINE)
    return {name: tuple(value for value in given if value != "_") for name, *given in rows}


def options(chosen: dict[str, str], checks: tuple[str, ...]) -> list[str]:
    settings = ",".join(["memory=16Gi", *(f"{name}={value}" for name, value in chosen.items())])
    return [
        *("--driver", "sim", "--limit", "60", "--sim", settings),
        *(word for check in checks for word in ("--check", check)),
        *(word for part in PARTS for word in ("--only", part)),
    ]


def test_each_switch_has_an_assumption_and_a_check():
    assert set(values()) == {*BREAKS, *OF_TIME}


@pytest.mark.parametrize("which", [1, -1], ids=["other", "last"])
def test_every_switch_the_other_way_is_found_out(tmp_path, which):
    """All but pids: without NVML's word about processes, nobody can say whom it charges for shared memory."""
    chosen = {name: given[which] for name, given in values().items() if name not in {"pids", *OF_TIME}}
    played = play(tmp_path, *options(chosen, CHECKS))
    assert played.status == 1
    assert {line["state"] for line in played.lines} == {"otherwise"}, played.said
    found = played.assumptions
    assert found >= {BREAKS[name] for name in chosen}, played.said


@pytest.mark.parametrize("value", [1, -1], ids=["other", "last"])
def test_pids_that_are_not_ours_are_found_out(tmp_path, value):
    played = play(tmp_path, *options({"pids": values()["pids"][value]}, ("surroundings", "sharing")))
    assert (played.status, played.assumptions) == (1, {BREAKS["pids"]})
    surroundings, sharing = played.lines
    assert surroundings["state"] == "otherwise"
    assert sharing["state"] == "passed" and "NVML by process, ipc" in sharing["skipped"]
