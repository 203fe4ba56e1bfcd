"""The name of this kernel's notebook, which Jupyter and VS Code pass in variables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["connection_file", "notebook_name"]

ENOUGH = 8
"""Characters of a kernel's id that are shown; it has 36."""


def notebook_name(environ: Mapping[str, str], argv: Sequence[str] = sys.orig_argv) -> str | None:
    """The notebook's file without directory and .ipynb; else a short name of its kernel; None: this is no kernel.

    Jupyter's server gives the file in an environment variable, VS Code in a variable of the session.
    """
    for said in (environ.get("JPY_SESSION_NAME"), _of_session("__vsc_ipynb_file__")):
        if said and Path(said).stem:
            return Path(said).stem
    file = connection_file(argv)
    if file is None:
        return None
    kind, _, identity = file.removesuffix(".json").partition("-")
    return f"{kind}-{identity[:ENOUGH]}".rstrip("-")


def connection_file(argv: Sequence[str] = sys.orig_argv) -> str | None:
    """kernel-ID.json without the directory. A restarted kernel has the same. None: this is no kernel."""
    if not any(word.startswith("ipykernel") for word in argv):
        return None
    return next((Path(word.rpartition("=")[2]).name for word in argv if word.endswith(".json")), None)


def _of_session(variable: str) -> str | None:
    shell: Any = None
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
    value = getattr(shell, "user_ns", {}).get(variable)
    return value if isinstance(value, str) else None
