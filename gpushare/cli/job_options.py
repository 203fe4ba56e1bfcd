"""The options of a job on the command line, made from their declarations in gpushare/job_spec.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from gpushare.cli import complete
from gpushare.job_spec import OPTIONS, Option, variable_of

Command = TypeVar("Command", bound=Callable[..., Any])

COMPLETIONS = {"reservation": complete.reservations}
DEFAULTS = {"name": "the program's", "priority": "0"}
"""Defaults that the help shows, if its text does not name them."""


class JobOptions:
    """Makes decorators for one command. Options have the order in which the command names them."""

    def __init__(self, *, for_kernels: bool = False) -> None:
        """`for_kernels`: only those that `gpushare kernel install` has, too."""
        self._left = {
            name: option for name, option in OPTIONS.items() if option.help and (option.for_kernels or not for_kernels)
        }

    def options(self, *names: str) -> Callable[[Command], Command]:
        """These options, by the names of their fields."""
        taken = [(name, self._left.pop(name)) for name in names]

        def decorate(command: Command) -> Command:
            for name, option in reversed(taken):
                command = _click_option(name, option)(command)
            return command

        return decorate

    def others(self) -> Callable[[Command], Command]:
        """Options that no earlier decorator has added."""
        return self.options(*self._left)


def flags_of(values: Mapping[str, Any]) -> dict[str, str | None]:
    """The values on the command line, by the option's variable."""
    return {variable_of(name): value for name, value in values.items() if name in OPTIONS and OPTIONS[name].variable}


def _click_option(name: str, option: Option) -> Callable[[Command], Command]:
    dashed = name.replace("_", "-")
    if option.kind == "flag":
        return click.option(f"--no-{dashed}", name, is_flag=True, flag_value=False, default=True, help=option.help)
    default = f"  [default: {DEFAULTS[name]}]" if name in DEFAULTS else ""
    return click.option(
        f"--{dashed}",
        name,
        metavar=option.metavar,
        shell_complete=COMPLETIONS.get(name),
        help=option.help + default,
    )
