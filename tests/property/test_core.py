"""Random event sequences against the node core, every invariant checked after each event.

A few thousand events in the ordinary run; `make property EVENTS=200000 SEED=1` drives as many as one wants.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gpushare.quantity import Kind, Quantity
from gpushared.events import AskCancelled, BudgetChanged, JobSpec
from gpushared.state import Policy
from property.world import World, mib

EVENTS = int(os.environ.get("GPUSHARE_TEST_EVENTS", "6000"))
STEPS = 60

GIB = 1024
amounts = st.one_of(
    st.integers(0, 16 * GIB).map(lambda amount: Quantity(Kind.BYTES, mib(amount), f"{amount}Mi")),
    st.integers(1, 10**9).map(lambda share: Quantity(Kind.SHARE, share, f"{share / 10**9:.9f}")),
    st.just(Quantity(Kind.MAX, 0, "max")),
    st.just(Quantity(Kind.NONE, 0, "none")),
)
sizes = st.one_of(
    st.integers(1, 16 * GIB).map(mib), st.integers(1, 600).map(mib), st.integers(1, 5000).map(lambda units: units * 512)
)
GPUS = ["GPU-0", "GPU-1"]


class Node(RuleBasedStateMachine):
    """Users, programs and an unkind environment."""

    @initialize(
        two=st.booleans(),
        total=st.integers(2 * GIB, 24 * GIB).map(mib),
        cost=st.integers(0, 512).map(mib),
    )
    def start(self, two: bool, total: int, cost: int) -> None:
        count = 2 if two else 1
        self.world = World([total] * count, [cost] * count, Policy(overhead_guess=mib(512)))

    # ---- users -------------------------------------------------------------------------------------

    @rule(
        request=amounts,
        limit=amounts,
        gpus=st.integers(0, 2),
        priority=st.integers(-1, 2),
        grace=st.sampled_from([None, 0.0, 1.0, 10.0]),
        lend=st.sampled_from([True, True, True, False]),
        wait=st.sampled_from([None, None, 5.0, 60.0]),
        protected=st.sampled_from([0.0, 0.0, 0.0, 20.0]),
    )
    def submit(self, request, limit, gpus, priority, grace, lend, wait, protected) -> None:
        if request.resolve(mib(GIB)) > limit.resolve(mib(GIB)):
            request, limit = limit, request
        spec = JobSpec(
            "job", 1000, "user", ("python",), request, limit, gpus, None, priority, grace, lend, protected
        )
        self.world.submit(spec, wait)

    @precondition(lambda self: self.world.node.jobs)
    @rule(pick=st.integers(0, 99), request=st.none() | amounts, limit=st.none() | amounts)
    def change_budget(self, pick, request, limit) -> None:
        self.world.send(BudgetChanged(self._job(pick), request, limit))

    @precondition(lambda self: self.world.node.jobs)
    @rule(pick=st.integers(0, 99))
    def end_job(self, pick) -> None:
        self.world.end(self._job(pick))

    # ---- programs ----------------------------------------------------------------------------------

    @precondition(lambda self: self.world.node.jobs)
    @rule(pick=st.integers(0, 99), gpu=st.sampled_from(GPUS))
    def start_program(self, pick, gpu) -> None:
        process = self.world.join(self._job(pick))
        if gpu in self.world.total:
            self.world.attach(process, gpu)

    @precondition(lambda self: self._idle_programs())
    @rule(pick=st.integers(0, 99), gpu=st.sampled_from(GPUS))
    def open_context(self, pick, gpu) -> None:
        if gpu in self.world.total:
            self.world.attach(self._pick(self._idle_programs(), pick), gpu)

    @precondition(lambda self: self._attached())
    @rule(pick=st.integers(0, 99), size=sizes)
    def allocate(self, pick, size) -> None:
        self.world.allocate(*self._pick(self._attached(), pick), size)

    @precondition(lambda self: self._attached())
    @rule(pick=st.integers(0, 99), share=st.floats(0, 1))
    def free(self, pick, share) -> None:
        process, gpu = self._pick(self._attached(), pick)
        used = self.world.programs[process].words[gpu].used
        self.world.free(process, gpu, int(used * share) // 512 * 512)

    @precondition(lambda self: self._attached())
    @rule(pick=st.integers(0, 99))
    def close_context(self, pick) -> None:
        self.world.detach(*self._pick(self._attached(), pick))

    @precondition(lambda self: self.world.programs)
    @rule(pick=st.integers(0, 99), lag=st.sampled_from([0.0, 0.0, 0.3, 3.0]))
    def exit(self, pick, lag) -> None:
        self.world.exit(self._pick(sorted(self.world.programs), pick), lag)

    @precondition(lambda self: self.world.terminated)
    @rule(share=st.floats(0.5, 1), pick=st.integers(0, 99))
    def give_back(self, share, pick) -> None:
        """A program that was sent SIGTERM frees memory."""
        job = self._pick(self.world.terminated, pick).job
        for process, gpu in self._attached():
            if self.world.programs[process].job == job:
                word = self.world.programs[process].words[gpu]
                self.world.free(process, gpu, int(word.used * share) // 512 * 512)

    @precondition(lambda self: self.world.waiting)
    @rule(pick=st.integers(0, 99))
    def give_up(self, pick) -> None:
        ask = self._pick(sorted(self.world.waiting), pick)
        del self.world.waiting[ask]
        self.world.send(AskCancelled(ask))

    # ---- the environment ---------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.0, 6.0, 40.0]))
    def time_passes(self, seconds) -> None:
        self.world.wait(seconds)

    @precondition(lambda self: self.world.programs)
    @rule(pick=st.integers(0, 99), stubborn=st.booleans())
    def hang(self, pick, stubborn) -> None:
        """A process that SIGKILL does not end while it is in the driver."""
        self.world.programs[self._pick(sorted(self.world.programs), pick)].stubborn = stubborn
        self.world.ever_stubborn = self.world.ever_stubborn or stubborn

    @precondition(lambda self: self.unkind)
    @rule(gpu=st.sampled_from(GPUS), amount=st.integers(0, 16 * GIB).map(mib))
    def outsider(self, gpu, amount) -> None:
        if gpu in self.world.total:
            self.world.occupy(gpu, amount)

    @rule()
    def daemon_restarts(self) -> None:
        self.world.restart()

    @initialize(unkind=st.booleans())
    def environment(self, unkind) -> None:
        self.unkind = unkind

    # ---- picking -----------------------------------------------------------------------------------

    @staticmethod
    def _pick(choices, pick):
        return choices[pick % len(choices)]

    def _job(self, pick) -> str:
        return self._pick(sorted(self.world.node.jobs), pick)

    def _busy(self) -> set[int]:
        return {asked.program for asked in self.world.waiting.values()}

    def _idle_programs(self) -> list[int]:
        return [process for process in sorted(self.world.programs) if process not in self._busy()]

    def _attached(self) -> list[tuple[int, str]]:
        return [
            (process, gpu)
            for process in self._idle_programs()
            for gpu in sorted(self.world.programs[process].contexts)
        ]


_settings = settings(
    max_examples=max(1, EVENTS // STEPS),
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestNode = seed(int(os.environ["GPUSHARE_TEST_SEED"]))(Node).TestCase if "GPUSHARE_TEST_SEED" in os.environ else Node.TestCase
TestNode.settings = _settings
