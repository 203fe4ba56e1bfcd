"""The parts of the tree that are changed, each with the tests that should notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CLUSTER_API = "daemon/gpushared/cluster/*.py"

SANITIZERS = "tests/portability/test_sanitizers.py"
"""They see a lock that is missing, which other tests see only where threads meet by chance."""

OF_COMMANDS = (
    "tests/cluster/test_cluster_cli.py",
    "tests/driver/test_suspend_check.py",
    "tests/engines/test_demo_queue.py",
    "tests/engines/test_queue_commands.py",
    "tests/kubernetes/test_doctor_cluster.py",
    "tests/kubernetes/test_kubectl_plugin.py",
    "tests/reports/test_play_report.py",
    "tests/reports/test_report_command.py",
)
"""Tests of commands that lie beside the tests of what the commands show."""


CORE_PROGRAMS = tuple(
    f"shim/preload/{name}.{kind}"
    for name in ("message", "quantity", "options", "table", "packet", "client", "gate", "account")
    for kind in "ch"
)
"""What tests/shim/test_shim_core.py compiles into programs of its own. That they run a line is not measured."""

PARTS = (
    *(
        f"shim/preload/{name}.c"
        for name in (
            "account",
            "block",
            "charge",
            "client",
            "copies",
            "device",
            "gate",
            "graph_pool",
            "hook_array",
            "hook_limit",
        )
    ),
    *(f"shim/preload/{name}.c" for name in ("hook_linear", "hook_pool", "hook_vmm", "message", "packet", "pool")),
    *(f"shim/preload/{name}.c" for name in ("hook_context", "hook_graph", "hook_info", "hook_multicast", "hook_nvml")),
    *(
        f"shim/preload/{name}.c"
        for name in ("borrower", "entry", "loader", "python", "stream", "symbols", "table", "thread", "trim")
    ),
    *(f"shim/preload/{name}.h" for name in ("account", "charge", "descriptor", "device", "lock", "stream", "system")),
    "shim/credit.h",
)
"""What those of tests/shim/test_shim_parts.py are made of."""


KEEPER = ("gpushare/cluster/engines/local/keeper.py",)
"""A program that imports nothing, not even what measures."""


OF_PAGES = ("tests/daemon/test_admin_dashboard.py",)
"""Tests of a page that the daemon serves."""


@dataclass(frozen=True)
class Group:
    name: str
    sources: tuple[str, ...]
    """Globs, relative to the root."""
    tests: tuple[str, ...]
    """Folders or files, relative to the root."""
    without: tuple[str, ...] = ()
    """Globs of sources that belong to another group."""
    pure: bool = False
    """Its tests compute and nothing else, and nearly every one of them runs nearly every line."""
    unmeasured: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By test file: sources that it compiles itself, or runs by themselves. Its tests may run any line of them."""

    def files(self, root: Path = ROOT) -> list[str]:
        """The paths of its sources, relative to `root`, sorted."""
        left_out = {path for glob in self.without for path in root.glob(glob)}
        found = {path for glob in self.sources for path in root.glob(glob)} - left_out
        return sorted(str(path.relative_to(root)) for path in found)


GROUPS = (
    Group("core", ("daemon/gpushared/core/*.py",), ("tests/core", "tests/property"), pure=True),
    Group("shell", ("daemon/gpushared/**/*.py",), ("tests/daemon",), ("daemon/gpushared/core/*.py", CLUSTER_API)),
    Group(
        "allocator",
        ("gpushare/cluster/*.py", "gpushare/cluster/engines/*.py"),
        ("tests/cluster", "tests/cluster/engines", "tests/conformance"),
        pure=True,
    ),
    Group(
        "library",
        ("shim/preload/*.[ch]", "shim/*.h"),
        ("tests/shim", SANITIZERS),
        ("shim/*_abi.h",),
        unmeasured={"tests/shim/test_shim_core.py": CORE_PROGRAMS, "tests/shim/test_shim_parts.py": PARTS},
    ),
    Group(
        "commandline",
        ("gpushare/*.py", "gpushare/cli/*.py", "gpushare/doctor/*.py", "gpushare/notebook/*.py"),
        ("tests/cli", "tests/unit", "tests/integration", "tests/notebook", *OF_COMMANDS),
    ),
    Group(
        "pages", ("gpushare/dashboard/*.py", "gpushare/report/*.py"), ("tests/dashboard", "tests/reports", *OF_PAGES)
    ),
    Group(
        "engines",
        (
            "gpushare/cluster/engines/*/*.py",
            "gpushare/cluster/service/*.py",
            "gpushare/kubernetes/*.py",
            "gpushare/kubernetes/*/*.py",
            CLUSTER_API,
        ),
        ("tests/cluster_service", "tests/engines", "tests/kubernetes"),
        ("gpushare/cluster/engines/slurm/*.py",),
        unmeasured={"tests/engines/test_local_tasks.py": KEEPER},
    ),
)
BY_NAME = {group.name: group for group in GROUPS}
