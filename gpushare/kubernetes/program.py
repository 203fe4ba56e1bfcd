"""What the programs of this package have in common: the log, and errors as text and an exit status."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

import click

import gpushare_installation
from gpushare.errors import GpushareError, UsageError

__all__ = ["needs_extra", "run"]


def run(command: click.Command) -> None:
    """Ends the process where that fails."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        command(standalone_mode=True)
    except GpushareError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"gpushare: {error}", file=sys.stderr)
        sys.exit(1)


@contextlib.contextmanager
def needs_extra() -> Iterator[None]:
    """Around imports of what comes with the extra `kubernetes`. Raises UsageError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error.name} is not installed", hint=gpushare_installation.install_extra("kubernetes")
        ) from None
