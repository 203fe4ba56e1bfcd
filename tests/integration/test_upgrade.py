"""A daemon of a later version meets programs of this one, and the other way round: nobody notices.

The later version is built here from the same sources and by the same description: its pages and frames have more
fields, which it fills, and a higher version. Another has dropped support for ours: it says so, and programs keep what
they have.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import sys
from pathlib import Path

import pytest

from integration.node import GIB, MIB, ROOT, Node, Puppet, gone, wait_for

PRESENT = f"{ROOT}:{ROOT / 'daemon'}"

MORE_FIELDS = {
    "shim/credit.h": [
        ("#define GS_PAGE_VERSION 1\n", "#define GS_PAGE_VERSION 2\n"),
        (
            "    uint32_t turn;",
            "    union {\n        uint32_t turn;\n"
            "        struct {\n            uint16_t colour, mood;\n        };\n    };",
        ),
    ],
    "shim/wire.h": [
        ("#define GS_WIRE_VERSION 1\n", "#define GS_WIRE_VERSION 2\n"),
        ("    uint32_t min_run_ms;\n", "    uint32_t min_run_ms;\n    uint64_t wish;\n"),
        ("plus 1; 0: not told */\n", "plus 1; 0: not told */\n    uint64_t more;\n"),
    ],
    "shim/preload/client.c": [
        (
            "    hello->min_run_ms = options->min_run_ms;\n",
            "    hello->min_run_ms = options->min_run_ms;\n    hello->wish = 7;\n",
        ),
        (
            "    client.page_file = gs_descriptor_of(",
            "    page->line[0].colour = 7;\n    client.page_file = gs_descriptor_of(",
        ),
    ],
    "daemon/gpushared/clients/pages.py": [
        (
            "        page.magic = lib.GS_PAGE_MAGIC\n",
            "        page.line[0].mood, page.magic = 7, lib.GS_PAGE_MAGIC\n",
        )
    ],
    "daemon/gpushared/shims/outbox.py": [
        (
            "body.node_number = status, line, granted, node_number\n",
            "body.node_number = status, line, granted, node_number\n        body.more = 7\n",
        )
    ],
}
"""What the next version changes: reserved space becomes fields, and bodies grow behind their last."""

OURS_DROPPED = {
    "shim/credit.h": [("#define GS_PAGE_OLDEST  1\n", "#define GS_PAGE_OLDEST  2\n")],
    "shim/wire.h": [("#define GS_WIRE_OLDEST  1\n", "#define GS_WIRE_OLDEST  2\n")],
}

VERSION_AT, MOOD_AT, COLOUR_AT = 8, 128 + 62, 128 + 60
"""In the page."""


def build(directory: Path, *changes: dict[str, list[tuple[str, str]]], library: bool) -> str:
    """Another version of gpushare; the PYTHONPATH that finds it."""
    for name in ("gpushare", "daemon", "shim"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__", "_layout.abi3.so"))
    for change in changes:
        for name, edits in change.items():
            text = (directory / name).read_text()
            for old, new in edits:
                assert text.count(old) == 1, (name, old)
                text = text.replace(old, new)
            (directory / name).write_text(text)
    found = importlib.util.spec_from_file_location("build_shim_of_another", directory / "shim" / "build_shim.py")
    assert found is not None and found.loader is not None
    description = importlib.util.module_from_spec(found)
    sys.modules[found.name] = description  # dataclasses look there
    try:
        found.loader.exec_module(description)
        if library:
            of = description.BY_NAME["gpushare.lib.libgpushare"]
            of.build(directory / of.file)
        description.layout_builder().compile(str(directory))
    finally:
        del sys.modules[found.name]
    return f"{directory}:{directory / 'daemon'}"


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("later"), MORE_FIELDS, library=True)


@pytest.fixture(scope="module")
def much_later(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("much-later"), MORE_FIELDS, OURS_DROPPED, library=False)


@pytest.fixture
def daemon_of(node: Node):
    """Starts a daemon of this version, in the place of the one that is there."""
    # No wrapper may start one: it would start a daemon of its own version.
    node.env["GPUSHARE_SOCKET"] = str(node.runtime / "api.sock")
    node.env["PYTHONSAFEPATH"] = "1"  # the present directory has this version's package
    running: list[int] = []

    def start(path: str) -> None:
        if running:
            node.kill_daemon()
            wait_for(lambda: gone(running[-1]), "the daemon to be gone")
        node.env["PYTHONPATH"] = path
        running.append(node.start_daemon())
        node.env["PYTHONPATH"] = PRESENT

    return start


def page(node: Node, program: Puppet) -> tuple[int, int, int]:
    """Its version, and what the two new fields say."""
    for path in (node.runtime / "pages").iterdir():
        data = path.read_bytes()
        if struct.unpack_from("<I", data, 40)[0] == program.pid():
            return tuple(struct.unpack_from("<H", data, at)[0] for at in (VERSION_AT, MOOD_AT, COLOUR_AT))  # type: ignore[return-value]
    raise AssertionError(f"{program.name} has no page")


def check(node: Node, program: Puppet, held: int) -> None:
    """The daemon knows all that it has, gives more up to its limit, and no more."""
    wait_for(lambda: node.job(program.name)["gpus"][0]["accounted"] == held, f"{program.name} to be known")
    shown = node.job(program.name)["gpus"][0]
    assert (shown["request"], shown["limit"]) == (1 * GIB, 4 * GIB)
    program.alloc(GIB)
    assert program.try_(f"alloc {3 * GIB}")[:2] == ["error", "2"]
    program.do("free last")
    assert node.job(program.name)["gpus"][0]["accounted"] == held


@pytest.mark.parametrize("upgrade", [True, False])
def test_programs_run_on_over_an_upgrade_and_back(node: Node, daemon_of, later: str, upgrade: bool):
    first, second = (PRESENT, later) if upgrade else (later, PRESENT)
    daemon_of(first)
    budget = ("--request", "1Gi", "--limit", "4Gi")
    ours = node.puppet("ours", *budget)
    theirs = node.puppet("theirs", *budget, PYTHONPATH=later)
    held = {}
    for program in (ours, theirs):
        program.alloc(GIB + 64 * MIB)
        held[program] = GIB + 64 * MIB
        check(node, program, held[program])
    assert page(node, ours) == ((1, 0, 0) if upgrade else (2, 7, 0))
    assert page(node, theirs) == ((1, 0, 7) if upgrade else (2, 7, 7))
    since = {program: node.job(program.name)["since"] for program in held}
    for path in (second, first):
        daemon_of(path)
        for program, size in held.items():
            check(node, program, size)
            program.alloc(64 * MIB)
            held[program] = size + 64 * MIB
        newcomer = node.puppet("newcomer", *budget, PYTHONPATH=first)
        check(node, newcomer, 0)
        assert newcomer.end() == 0
    assert len(list((node.runtime / "pages").iterdir())) == 2
    for program in held:
        assert abs(node.job(program.name)["since"] - since[program]) < 0.1
        assert program.end() == 0
    wait_for(lambda: node.api("GET", "/v1/status")["jobs"] == [], "all to be gone")
    wait_for(lambda: node.gpu()["usage"] == 0, "nothing to be left")


def test_a_version_that_has_dropped_ours_says_so_and_takes_nothing(node: Node, daemon_of, much_later: str):
    daemon_of(PRESENT)
    ours = node.puppet("ours", "--request", "1Gi", "--limit", "4Gi")
    ours.alloc(GIB)
    before = sorted((path.name, path.read_bytes()) for path in (node.runtime / "pages").iterdir())
    daemon_of(much_later)
    ours.do("free last")
    ours.alloc(GIB)  # its credit is its own
    assert ours.try_(f"alloc {GIB}")[:2] == ["error", "2"]
    assert "a page is too old for this daemon" in node.log()
    after = sorted((path.name, path.read_bytes()) for path in (node.runtime / "pages").iterdir())
    assert [name for name, _ in after] == [name for name, _ in before]
    daemon_of(PRESENT)
    check(node, ours, GIB)  # the program has noticed nothing
    assert ours.end() == 0
    assert "frames of version 1; this daemon speaks 2 and later ones" in ours.errors()
