"""What the core's instructions about credit become in the pages, and what it is told of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from daemon_harness import GIB, GPU, GPU2

from gpushared.core import instructions as do
from gpushared.core.events import Revoked
from gpushared.runtime.credit_effects import CreditEffects


class Credit:
    """Pages of processes 1 and 2; it notes what is written."""

    def __init__(self, diary: list[Any]) -> None:
        self.pages = {1: object(), 2: object()}
        self._diary = diary

    def open_share(self, process: int, gpu: str, credit: int, overhead: int) -> int:
        self._diary.append(("open", process, gpu, credit, overhead))
        return 4

    def grant(self, *what: Any) -> None:
        self._diary.append(("grant", *what))

    def trim(self, *what: Any) -> None:
        self._diary.append(("trim", *what))

    def publish(self, process: int, gpu: str, figures: Any) -> None:
        self._diary.append(("publish", process, gpu, figures))

    def revoke(self, process: int, gpu: str, size: int) -> tuple[int, int]:
        return size // 2, 7


def effects(diary: list[Any]) -> dict[type, Any]:
    """Answers are noted, too."""
    core = SimpleNamespace(published=lambda gpu, processes: {one: f"figures of {one}" for one in processes})
    asks = SimpleNamespace(answer=lambda done, line: diary.append(("answer", done.ask, line)))
    core_loop: Any = SimpleNamespace(core=core, asks=asks)
    return CreditEffects(core_loop, Credit(diary), SimpleNamespace()).effects()  # type: ignore[arg-type]


def test_each_instruction_is_in_the_page_before_its_answer() -> None:
    diary: list[Any] = []

    async def story() -> None:
        does = effects(diary)
        does[do.Attached](do.Attached(11, 1, GPU, overhead=5, credit=GIB))
        does[do.Granted](SimpleNamespace(ask=12, process=2, gpu=GPU2, size=3, figures="f"))
        does[do.Denied](SimpleNamespace(ask=13))
        does[do.Attached](do.Attached(14, 99, GPU, overhead=5, credit=GIB))

    asyncio.run(story())
    assert diary == [
        *(("open", 1, GPU, GIB, 5), ("publish", 1, GPU, "figures of 1"), ("answer", 11, 4)),
        *(("grant", 2, GPU2, 3, "f"), ("answer", 12, None)),
        ("answer", 13, None),
        ("answer", 14, None),  # it has gone: nobody waits for a line
    ]


def test_each_process_is_asked_to_trim_and_what_was_taken_back_is_told() -> None:
    diary: list[Any] = []

    async def story() -> None:
        does = effects(diary)
        assert does[do.Trim](SimpleNamespace(processes=(1, 2), gpu=GPU, size=GIB, within=2.0)) is None
        assert does[do.Revoke](SimpleNamespace(process=2, gpu=GPU, size=10)) == Revoked(2, GPU, 5, 7)

    asyncio.run(story())
    assert diary == [("trim", 1, GPU, GIB, 2.0), ("trim", 2, GPU, GIB, 2.0)]
