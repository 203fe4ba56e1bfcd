"""The arrows between the parts: who may import what, and that what decides does no I/O."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DAEMON = ROOT / "daemon" / "gpushared"
CORE = sorted(path.stem for path in (DAEMON / "core").glob("*.py"))
ALLOWED_IN_CORE = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "itertools",
    "math",
    "typing",
    "gpushare.job_spec",
    "gpushare.quantity",
    "gpushare.reasons",
    "gpushare.reclaim_steps",
}

CLUSTER = [
    "actions",
    "ageing",
    "allocator",
    "answers",
    "apply",
    "attempts",
    "candidates",
    "checks",
    "claimed",
    "classes",
    "clearing",
    "decide",
    "elastic",
    "events",
    "explain",
    "holders",
    "holes",
    "jobs",
    "journal",
    "lines",
    "lists",
    "losses",
    "model",
    "moves",
    "news",
    "nodes",
    "nouns",
    "order",
    "placement",
    "plan",
    "proof",
    "quantity",
    "queues",
    "reasons",
    "room",
    "rules",
    "search",
    "shapes",
    "shares",
    "singles",
    "sizes",
    "space",
    "starting",
    "state",
    "transaction",
    "turn",
    "victims",
    "views",
    "watch",
    "widening",
]
"""The cluster allocator's core."""
ALLOWED_IN_CLUSTER = {
    "__future__",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "gc",  # paused while a turn is decided; it reads and writes nothing outside of the process
    "heapq",
    "itertools",
    "operator",
    "typing",
    "gpushare.errors",
    "gpushare.nearest",
    "gpushare.quantity",
}


def imports(path: Path) -> set[str]:
    """Dotted names of all modules imported anywhere in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_nothing_that_does_io(module: str) -> None:
    assert "node" in CORE, "the core is not where it is looked for"
    for name in imports(DAEMON / "core" / f"{module}.py"):
        pure = name in ALLOWED_IN_CORE or name.split(".")[0] == "collections"
        assert pure or f"{name}.".startswith("gpushared.core."), f"{module} imports {name}"


@pytest.mark.parametrize("module", CLUSTER)
def test_the_allocator_imports_nothing_that_does_io(module: str) -> None:
    core = {f"gpushare.cluster.{name}" for name in CLUSTER} | {"gpushare.cluster"}
    for name in imports(ROOT / "gpushare" / "cluster" / f"{module}.py"):
        assert name in ALLOWED_IN_CLUSTER or name in core or name == "collections.abc", f"{module} imports {name}"


@pytest.mark.parametrize("module", ["seam", "reconcile", "memory", "hosted", "obeyed"])
def test_what_is_decided_for_engines_is_decided_without_io(module: str) -> None:
    pure = {f"gpushare.cluster.{name}" for name in CLUSTER}
    pure |= {f"gpushare.cluster.engines.{name}" for name in ("seam", "runner", "obeyed")}
    for name in imports(ROOT / "gpushare" / "cluster" / "engines" / f"{module}.py"):
        assert name in ALLOWED_IN_CLUSTER | pure | {"collections.abc", "random"}, f"{module} imports {name}"


def test_the_allocator_is_named_completely() -> None:
    """Whatever allocator.py needs, however far away, is in the list above."""
    seen, todo = set(), ["allocator"]
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            found = imports(ROOT / "gpushare" / "cluster" / f"{module}.py")
            todo += [name.split(".")[2] for name in found if name.startswith("gpushare.cluster.")]
    assert seen <= set(CLUSTER)


@pytest.mark.parametrize("module", ["job_spec", "nearest", "printable", "quantity", "reasons", "reclaim_steps"])
def test_what_the_core_imports_is_pure_too(module: str) -> None:
    allowed = {"__future__", "re", "dataclasses", "difflib", "enum", "typing", "collections.abc", "gpushare.errors"}
    allowed |= {"gpushare.printable", "gpushare.quantity", "gpushare.reclaim_steps"}
    assert imports(ROOT / "gpushare" / f"{module}.py") <= allowed


def test_gpushare_never_imports_the_daemon() -> None:
    for path in (ROOT / "gpushare").rglob("*.py"):
        assert not {name for name in imports(path) if name.split(".")[0] == "gpushared"}, path


def test_no_module_of_the_daemon_needs_itself() -> None:
    """By whatever way, imports for types included: static_order() raises CycleError, which names the circle."""
    modules = {dotted(path): path for path in DAEMON.rglob("*.py")}
    needs = {name: used_by(path) & modules.keys() for name, path in modules.items()}
    assert len(list(TopologicalSorter(needs).static_order())) == len(modules) > 60
    folders: dict[str, set[str]] = {}
    for name, others in needs.items():
        folders.setdefault(folder(name), set()).update(folder(one) for one in others if folder(one) != folder(name))
    list(TopologicalSorter(folders).static_order())


BELOW = {
    "core": set(),
    "system": set(),
    "limits": {"core", "system", "config"},
    "history": {"system", "limits"},
    "jobs": {"core", "system", "limits", "history"},
    "clients": {"core", "system"},
    "gpus": {"core", "system", "limits", "clients"},
    "runtime": {"core", "system", "limits", "jobs", "clients", "gpus"},
    "shims": {"core", "system", "limits", "jobs", "clients", "runtime"},
    "api": {"core", "system", "limits", "history", "jobs", "gpus", "runtime", "config"},
    "cluster": {"system", "limits", "history", "api"},
}
"""Folder of the daemon -> what it may import. Beside them stand only the modules that put all of it together."""
BESIDE = {"__init__", "__main__", "cli", "config", "config_check", "daemon"}


@pytest.mark.parametrize("room", BELOW)
def test_a_folder_of_the_daemon_imports_only_what_is_below_it(room: str) -> None:
    for path in (DAEMON / room).rglob("*.py"):
        used = {name.split(".")[1] for name in used_by(path) if name.startswith("gpushared.")}
        assert used - {room} <= BELOW[room], f"{path.name} imports {used - {room} - BELOW[room]}"


def test_every_module_of_the_daemon_stands_in_a_folder() -> None:
    assert {path.name for path in DAEMON.iterdir() if (path / "__init__.py").exists()} == set(BELOW)
    assert {path.stem for path in DAEMON.glob("*.py")} == BESIDE


def test_the_state_of_the_core_is_read_by_nobody_else() -> None:
    """The core answers queries: what it keeps may change without anybody noticing."""
    for path in DAEMON.rglob("*.py"):
        if path.parent.name != "core":
            found = [node for node in ast.walk(ast.parse(path.read_text())) if _is_state_of_core(node)]
            assert not found, f"{path}:{found[0].lineno}"


def _is_state_of_core(node: ast.AST) -> bool:
    inner = node.value if isinstance(node, ast.Attribute) and node.attr == "state" else None
    return (isinstance(inner, ast.Attribute) and inner.attr == "core") or (
        isinstance(inner, ast.Name) and inner.id in ("core", "earlier", "failed")
    )


def folder(module: str) -> str:
    """A module beside the folders counts as one of its own."""
    return ".".join(module.split(".")[:2])


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(DAEMON.parent).with_suffix("").parts)


def used_by(path: Path) -> set[str]:
    """Like imports(), with `from package import module` as the module that it is."""
    tree = ast.walk(ast.parse(path.read_text()))
    inside = {
        f"{node.module}.{alias.name}" for node in tree if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return imports(path) | inside


PRELOAD = ROOT / "shim" / "preload"
PRELOAD_LAYERS = (
    {"moments", "system", "quantity"},
    {"lock", "loader", "message", "descriptor"},  # the C library's loader, and what is said on stderr
    {"options", "process", "table", "thread", "driver", "packet"},
    {"client", "symbols", "gate"},  # the daemon's socket; what driver.h declares; where calls wait while suspended
    {"account", "copies"},
    {"device"},  # GPUs and contexts
    {"stream", "pool", "graph_pool", "block"},  # what is charged beside single pointers
    {"charge", "turn"},  # turn: launches wait for another job's turn
    {"hooks"},
    {path.stem for path in PRELOAD.glob("hook_*.c")} | {"entry"},  # what programs call
    {"trim"},
    {"python", "turn_probe"},
    {"borrower"},
)
"""The modules of the preload library (a .c file, a header, or both) bottom up. One includes only those below."""


def included(path: Path) -> set[str]:
    """The modules of the preload library whose headers a file includes."""
    named = re.findall(r'^#include "(\w+)\.h"$', path.read_text(), re.MULTILINE)
    return {name for name in named if (PRELOAD / f"{name}.h").exists()}


def test_the_modules_of_the_preload_library_include_only_those_below() -> None:
    layer = {name: number for number, names in enumerate(PRELOAD_LAYERS) for name in names}
    files = sorted(PRELOAD.glob("*.[ch]"))
    assert {path.stem for path in files} == set(layer) and len(layer) == sum(map(len, PRELOAD_LAYERS))
    upward = [
        f"{path.name} includes {name}.h"
        for path in files
        for name in included(path) - {path.stem}
        if layer[name] >= layer[path.stem]
    ]
    assert upward == []


def test_a_function_of_the_preload_library_is_declared_in_a_header_only() -> None:
    """So that none is used without the include that the layers are told by. The exception is in assembly."""
    for path in PRELOAD.glob("*.c"):
        declared = re.findall(r"^\s*extern .*?\b(gs_\w+)", path.read_text(), re.MULTILINE)
        assert set(declared) <= {"gs_trim_hook"}, path


def test_the_preload_library_has_one_way_to_the_kernel_and_one_to_threads() -> None:
    """As raw system calls, with the C library's wrappers nowhere: system.h says why."""
    kernel = re.compile(r"\bsyscall\(|#include <(sys/(?!auxv)\w+|linux/\w+|unistd|fcntl|poll)\.h>")
    threads = re.compile(r"\bpthread_create\b|#include <pthread\.h>")
    for path in PRELOAD.glob("*.[ch]"):
        code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        assert path.name == "system.h" or not kernel.search(code), path
        assert path.name == "thread.c" or not threads.search(code), path


def test_no_macro_of_the_preload_library_holds_the_body_of_a_function() -> None:
    """A list of names may be long."""
    for path in PRELOAD.glob("*.[ch]"):
        for macro in re.findall(r"^#define (?:.*\\\n)*.*$", path.read_text(), re.MULTILINE):
            lines = [line for line in macro.splitlines() if not re.match(r"\s+(HELPER|F)\(", line)]
            assert len(lines) <= 12, (path.name, lines[0])
