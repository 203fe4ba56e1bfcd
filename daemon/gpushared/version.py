"""The version of the installed package."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gpushare")
    except PackageNotFoundError:
        return "0+source"
