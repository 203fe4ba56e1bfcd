"""What frameworks need to share a GPU well: one table, for `gpushare run --for NAME`.

An inference server plans from the memory that it sees when it starts, and asserts that nobody took any meanwhile. With
`--visible request` it sees what it is guaranteed: that does not change when its neighbours move. A framework that takes
most of what it sees is told by its own variable to take what it uses.

What the user has said by an option, a variable or a file comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["FRAMEWORKS", "Framework"]


class Framework(NamedTuple):
    """What is set for a program of it."""

    visible: str
    """As for --visible."""
    variables: Mapping[str, str]
    """Of the framework's own, unless they are set."""
    why: str


FRAMEWORKS: Mapping[str, Framework] = {
    "vllm": Framework("request", {}, "it plans its cache from what is free at the start, and asserts that this stays"),
    "sglang": Framework("request", {}, "it plans its cache from what is free at the start"),
    "ollama": Framework("request", {}, "it decides from what is free how many layers go to the GPU"),
    "jax": Framework(
        "limit", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "it would take three quarters of what it sees"
    ),
    "tensorflow": Framework("limit", {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, "it would take nearly all that it sees"),
    "torch": Framework("limit", {}, "it takes what it uses, and its cache is asked for by trim"),
}
