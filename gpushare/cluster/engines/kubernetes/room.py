"""The room of nodes for starts between two looks at the cluster: GPU memory, and CPUs and memory of the host.

Several starts are decided at once, from the same look. Each takes its room here before anything of it is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpushare.cluster.engines.kubernetes.board import Board
from gpushare.cluster.engines.kubernetes.mark import Mark
from gpushare.cluster.engines.kubernetes.member import Member
from gpushare.cluster.engines.kubernetes.needs import NONE, Needs
from gpushare.cluster.engines.seam import Busy, Refused
from gpushare.cluster.model import Place

__all__ = ["Room"]


class Room:
    def __init__(self, board: Board) -> None:
        self._board = board
        self._begun: dict[str, Needs] = {}
        """CPUs and memory of each node that starts since the last look take."""
        self._crowded: set[str] = set()
        """Nodes whose CPUs or memory were too small for a start since then."""
        self._short: dict[Needs, tuple[int, Needs]] = {}

    def look(self) -> None:
        """The board has just looked: it counts what was begun before."""
        self._begun.clear()
        self._crowded.clear()
        self._short.clear()

    def short(self, needs: Needs) -> tuple[int, Needs]:
        """How many nodes had less of these left at the last look, and of which."""
        if needs not in self._short:
            rooms = [kept.room for kept in self._board.nodes.values() if not needs.within(kept.room)]
            self._short[needs] = len(rooms), needs.beyond(rooms) if rooms else NONE
        return self._short[needs]

    def take(self, due: Sequence[tuple[Member, Place]]) -> Refused | Busy | None:
        """Room for all of them, or for none. Refused names the node that is too small: the allocator leaves it alone
        for a while and looks for others. Busy: CPUs or memory of a node that was refused since the last look."""
        board = self._board
        more: Counter[tuple[str, int]] = Counter()
        crowd: dict[str, Needs] = {}
        for member, place in due:
            kept = board.nodes.get(place.node)
            if kept is None or kept.state == "lost" or any(gpu not in kept.devices for gpu in place.gpus):
                return Refused(f"there is no GPU {place.gpus} on {place.node}", place.node)
            for gpu in place.gpus:
                which = place.node, gpu
                more[which] += place.amount
                if board.used[which] + board.foreign[which] + more[which] > kept.node.memory:
                    return Refused("it does not fit beside what runs there", place.node)
            assert member.asked is not None
            crowd[place.node] = crowd.get(place.node, NONE).plus(member.asked.wants.needs)
            if not crowd[place.node].within(kept.room.less(self._begun.get(place.node, NONE))):
                if place.node in self._crowded:
                    return Busy()
                self._crowded.add(place.node)
                return Refused(
                    "its CPUs and memory do not fit beside what runs there, or it takes no more pods", place.node
                )
        for node, wanted in crowd.items():
            self._begun[node] = self._begun.get(node, NONE).plus(wanted)
        board.used.update(more)
        return None

    def give_back(self, mark: Mark) -> None:
        """The GPU memory of a start that came to nothing."""
        self._board.used.subtract({(mark.node, gpu): mark.amount for gpu in mark.gpus})
