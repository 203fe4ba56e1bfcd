"""gpushare daemon: run the node daemon in the foreground, show it, or stop it."""

from __future__ import annotations

import os
import signal
import sys
import time

import click

from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, GpushareError, NotPermitted, UsageError
from gpushare.locate import find
from gpushare.quantity import count, format_duration

STOPS_WITHIN = 10.0
NO_SUCH = (
    "there are `gpushare daemon status` and `gpushare daemon stop`; `gpushare run` starts one by itself,"
    " `gpushare daemon` runs one in the foreground"
)


@click.command(
    short_help="Run the node daemon in the foreground, show it, or stop it.",
    context_settings={"ignore_unknown_options": True},
)
@_output.option("table", "json")
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=complete.words("status", "stop", "--help-daemon")
)
def command(arguments: tuple[str, ...], output: str) -> None:
    """Run the node daemon in the foreground; ARGUMENTS are those of gpushared.

    \b
    gpushare daemon --help-daemon   the options of gpushared
    gpushare daemon status          which daemon answers here
    gpushare daemon stop            end it; jobs run on, and their `gpushare run` starts another within seconds

    Its messages are in daemon.log beside its socket; `gpushare daemon status` names both.
    """
    if arguments == ("status",):
        _status(output)
    elif arguments == ("stop",):
        _stop()
    elif arguments and not arguments[0].startswith("-"):
        raise UsageError(f"no such command 'daemon {' '.join(arguments)}'", hint=NO_SUCH)
    else:
        words = ["--help" if word == "--help-daemon" else word for word in arguments]
        os.execv(sys.executable, [sys.executable, "-P", "-m", "gpushared", *words])


def _status(output: str) -> None:
    node = find(load_settings())
    client = node.client()
    version, uptime = client.version(), client.status()["daemon"]["uptime"]
    socket = str(node.runtime.api_socket)
    if output == "json":
        _output.print_json("daemon", {**version, "socket": socket, "uptime": uptime})
        return
    up = format_duration(float(int(uptime)))
    _output.echo(
        f"gpushared {version['version']} (pid {version['pid']}, {version['scope']},"
        f" driver {version['driver']}), up {up}"
    )
    _output.echo(f"  {socket}")
    if version["scope"] == "user" and node.runtime.log.exists():
        _output.echo(f"  {node.runtime.log}")


def _stop() -> None:
    node = find(load_settings())
    version = node.client().version()
    pid, jobs = version["pid"], node.client().status()["daemon"]["jobs"]
    if version["scope"] == "system":
        raise GpushareError("this is the system's daemon", hint="systemctl stop gpushared")
    try:
        descriptor = os.pidfd_open(pid)
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise NotPermitted(f"the daemon (pid {pid}) belongs to another user") from None
    deadline = time.monotonic() + STOPS_WITHIN
    while time.monotonic() < deadline:
        try:
            node.client(1.0).version()
        except DaemonUnreachable:
            others = f"; {count(jobs, 'job runs', 'jobs run')} on, and each starts another daemon" if jobs else ""
            _output.echo(f"stopped gpushared (pid {pid}){others}", err=True)
            return
        time.sleep(0.05)
    raise GpushareError(f"the daemon (pid {pid}) did not end within {format_duration(STOPS_WITHIN)}")
