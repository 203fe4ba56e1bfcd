"""gpushare shim-path: where the preload library is."""

from __future__ import annotations

import click

from gpushare.cli import output as _output
from gpushare.errors import GpushareError
from gpushare.paths import library


@click.command("shim-path", short_help="Print the path of the preload library.")
def command() -> None:
    """Print the path of the preload library, to set LD_PRELOAD by hand.

    \b
    LD_PRELOAD=$(gpushare shim-path) GPUSHARE_LIMIT=4Gi python train.py
    """
    if not library().exists():
        raise GpushareError(
            f"the preload library {library()} is not there",
            code="not_built",
            hint="install the package (pip install .), or build in place (make build)",
        )
    _output.echo(library())
