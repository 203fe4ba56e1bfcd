"""What the engine keeps in a pod's own record: an annotation that says where the pod is to run, and in which attempt.

    gpushare.dev/start: '{"job": "6f1c...", "attempt": 1, "node": "n2", "gpus": [1], "amount": 8589934592, ...}'

There is no other place for it, so a service that starts again finds every start that was decided for good. Only the
engine writes it: the policy in deploy/kubernetes refuses it to others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["UNSAID", "Mark", "read"]

UNSAID = "-"
"""No queue is called so: labels begin with a letter or a digit."""


@dataclass(frozen=True, slots=True)
class Mark:
    job: str = ""
    """The job that it is a task of; "": none was decided."""
    task: int = 0
    attempt: int = 0
    node: str = ""
    gpus: tuple[int, ...] = ()
    amount: int = 0
    """Bytes of each of these GPUs."""
    token: tuple[int, int] = (0, 0)
    """The newest command that was obeyed."""
    rung: int = 0
    stop: bool = False
    """That start is over."""
    failed: str = ""
    """Why it did not start there."""
    blame: bool = False
    """The node is to blame for that."""
    evictions: int = 0
    since: float = 0.0
    """When the job was submitted (seconds since 1970), if that was before this pod: it takes the place of another."""
    size: int = 0
    """Tasks of the job, where pods do not say how many these are; 0: they do."""
    queue: str = ""
    """In which it was started; UNSAID: in that of its namespace; "": an earlier release did not say."""

    def queue_of(self, label: str, *, bound: bool) -> str:
        """Of a pod with that label; "": none is said. Its users may change the label of a pod that has started: that
        means nothing."""
        if not self.node or not self.queue or (not bound and (self.failed or self.stop)):
            return label
        return "" if self.queue == UNSAID else self.queue

    def text(self) -> str:
        kept = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({name: value for name, value in kept.items() if value != getattr(_EMPTY, name)})


_EMPTY = Mark()


def read(text: str) -> Mark:
    """Of what is none, one that says nothing."""
    try:
        said: dict[str, Any] = json.loads(text or "{}")
        known = {name: type(getattr(_EMPTY, name))(value) for name, value in said.items() if name in Mark.__slots__}
        mark = Mark(**known)
        (_, _), _ = mark.token, tuple(map(int, (*mark.token, *mark.gpus)))
    except (TypeError, ValueError, AttributeError):
        return _EMPTY
    return mark
