"""Checks of an installation: a list of data, no printing.

Each check tries the real thing (the loader, the socket, NVML). `ok` and `skip` need no action. `warn`: it works, but
not as well as it could. `fail`: it does not work; then the exit status is 1. A finding has the commands that mend it on
this machine, if there are any: for the user to read and type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpushare.doctor.compiled import check_glibc, check_installation, check_layout, check_shim_loads
from gpushare.doctor.daemon import check_daemon, check_escaped, check_health, check_runtime_dir, check_unmanaged
from gpushare.doctor.driver import check_copies, check_driver, check_native_limits, check_suspend
from gpushare.doctor.environment import check_container, check_interposers, check_variables
from gpushare.doctor.finding import Check, Finding, Surroundings
from gpushare.errors import DaemonUnreachable, GpushareError, NotPermitted

__all__ = ["CHECKS", "Check", "Finding", "Surroundings", "examine"]


CHECKS = (
    Check(
        "GS01",
        "NVIDIA driver and NVML",
        check_driver,
        "if this machine has a GPU, `nvidia-smi` must list it; without one, programs run on the software driver",
    ),
    Check("GS02", "library loads", check_shim_loads, "reinstall gpushare on this machine, with this C library"),
    Check("GS03", "daemon", check_daemon, "restart the daemon after an upgrade: it is of another version"),
    Check("GS04", "memory layouts", check_layout, "reinstall gpushare: its compiled parts are of another version"),
    Check("GS05", "other preload libraries", check_interposers, "use one at a time: two count the same memory twice"),
    Check("GS06", "runtime directory", check_runtime_dir, "remove it, or set XDG_RUNTIME_DIR"),
    Check("GS07", "limits in the driver", check_native_limits, ""),
    Check(
        "GS08", "memory outside gpushare", check_unmanaged, "guarantees hold only for what runs under `gpushare run`"
    ),
    Check("GS09", "environment variables", check_variables, "unset what you do not mean"),
    Check(
        "GS10",
        "container",
        check_container,
        "if its node runs the system's daemon, start it with --pid=host -v /run/gpushare:/run/gpushare",
    ),
    Check(
        "GS11",
        "C library",
        check_glibc,
        "install gpushare from its source tree on this machine: the installed one was built for a newer C library",
    ),
    Check(
        "GS12",
        "programs without the library",
        check_escaped,
        "link them to the driver dynamically, or leave room for them yourself",
    ),
    Check("GS13", "health of the GPUs", check_health, "see `gpushare status`"),
    Check(
        "GS14",
        "installation",
        check_installation,
        "install gpushare again, from the source tree or the wheel that it came from",
    ),
    Check(
        "GS15",
        "copies of the driver",
        check_copies,
        "let the program load one driver, in its own namespace: what it allocates through another may pass the limit",
    ),
    Check(
        "GS16", "suspending", check_suspend, "update the driver; until then such jobs are stopped, as all others are"
    ),
)


def examine(surroundings: object, checks: Sequence[Check] = CHECKS) -> Iterator[tuple[Check, Finding]]:
    """Each check with its finding. An unexpected error in a check becomes its finding, and the others go on."""
    for check in checks:
        try:
            finding = check.probe(surroundings)
        except DaemonUnreachable as error:
            finding = Finding("skip", error.message, "")
        except NotPermitted as error:
            finding = Finding("skip", error.message, error.hint)
        except GpushareError as error:
            finding = Finding("fail", error.message, error.hint)
        except Exception as error:
            finding = Finding("fail", f"the check itself failed: {type(error).__name__}: {error}")
        if finding.hint is None and finding.state in ("warn", "fail"):
            finding = replace(finding, hint=check.hint)
        yield check, finding
