"""The same random events on GPUs that fall ill, are lost, come back, and change their size."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from gpushared.core.health_issues import lost, rows_failed, uncorrected
from property.driving import drive
from property.test_core import EVENTS, GPUS, Node, seen


class AilingNode(Node):
    """Users, programs, and hardware that does not last."""

    @rule(gpu=st.sampled_from(GPUS), what=st.sampled_from([uncorrected(1), rows_failed(), rows_failed(), lost()]))
    def falls_ill(self, gpu, what) -> None:
        if gpu in self.world.total:
            self.world.befall(gpu, what)
            seen[f"gpus {what.condition}"] += 1

    @precondition(lambda self: any(self.world.issues.values()))
    @rule(first=st.booleans())
    def gets_well(self, first) -> None:
        ill = [gpu for gpu, ailments in self.world.issues.items() if ailments]
        self.world.befall(ill[0 if first else -1])

    @precondition(lambda self: any(self.world.waiting.values()))
    @rule(pick=st.integers(0, 99))
    def is_lost_while_somebody_waits(self, pick) -> None:
        asked = self.world.waiting[self._pick(sorted(self.world.waiting), pick)]
        self.world.befall(asked.gpu, lost())

    @rule(gpu=st.sampled_from(GPUS), share=st.sampled_from([0.5, 0.9, 0.99, 1.01, 1.1, 2.0]))
    def changes_size(self, gpu, share) -> None:
        if gpu in self.world.total:
            self.world.resize(gpu, int(self.world.total[gpu] * share))
            seen["overpromised"] += self.world.node.gpus[gpu].overpromised > 0

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is not None:
            seen["gpu_lost"] += world.node.counters.violations.get("gpu_lost", 0)
        super().teardown()


@pytest.mark.timeout(600)  # it goes on until it has seen all that it is to see: 46 s alone, minutes beside other work
def test_invariants_hold_on_gpus_that_fall_ill_and_change() -> None:
    wanted = (
        "claims",
        "terms",
        "not_free",
        "not_admitted",
        "gpu_unhealthy",
        "gpus degraded",
        "gpus sick",
        "gpus lost",
        "gpu_lost",
        "overpromised",
    )
    drive(AilingNode, EVENTS // 2, wanted)
