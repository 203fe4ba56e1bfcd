"""gpushare attach: follow a queued job as if it had been started here."""

from __future__ import annotations

import click

from gpushare.cli import complete
from gpushare.cli import output as _output

LAST = 10
"""Lines of what it has written before."""


@click.command(short_help="Follow a queued job's output, and end as it does.")
@click.argument("job", shell_complete=complete.queued)
def command(*, job: str) -> int:
    """Show the last lines of JOB's output and what follows, until it ends; then exit with its exit status. Ctrl-C ends
    only this command. It waits for a job that has not started."""
    from gpushare.cli.logs import show
    from gpushare.cli.queued import ending, exit_status

    try:
        ended = show(job, follow=True, last=LAST)
    except KeyboardInterrupt:
        _output.note(f"job {job} goes on; `gpushare cancel {job}` stops it")
        return 130
    _output.note(ending(ended))
    return exit_status(ended)
