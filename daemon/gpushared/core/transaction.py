"""One event of the core: the state, the time, and the instructions that follow."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpushare.job_spec import JobSpec
from gpushare.reasons import Reason, Words
from gpushared.core.instructions import Instruction, Log, LookUsed, Record, SampleMemory
from gpushared.core.model import Gpu, Job
from gpushared.core.policy import Policy
from gpushared.core.state import State

STORY_LINES = 400
"""Kept per job and for the node; the oldest go first."""
ALL_STORIES = 16_000
"""Lines of all jobs together: with more than forty jobs each keeps fewer, ..."""
LEAST_LINES = 20
"""... and never fewer than these."""


@dataclass(slots=True)
class Transaction:
    """What a handler reads (state, now) and writes (state, out)."""

    state: State
    now: float
    out: list[Instruction] = field(default_factory=list)

    @property
    def policy(self) -> Policy:
        return self.state.policy

    def emit(self, instruction: Instruction) -> None:
        self.out.append(instruction)

    def next_command(self) -> int:
        """The number of the next command for a job's suspender or the process that calls its hooks."""
        self.state.commands += 1
        return self.state.commands

    def note_command(self, number: int) -> None:
        """An earlier core gave this number: the answer to it may still come, so no other command gets it."""
        self.state.commands = max(self.state.commands, number)

    def look(self, gpu: Gpu) -> None:
        """Have the words of this GPU's processes read, unless that is under way."""
        if not gpu.looking:
            gpu.looking = True
            self.out.append(LookUsed(gpu.id))

    def sample(self, gpu: Gpu) -> None:
        """Have NVML asked about this GPU, unless that is under way."""
        if not gpu.sampling:
            gpu.sampling = True
            self.out.append(SampleMemory(gpu.id))

    def record(
        self, event: str, text: Words, *, job: Job | None = None, gpu: str | None = None, **facts: object
    ) -> None:
        """Record for the log, for the node's story and for the job's."""
        self._keep(event, text, job, gpu, facts)

    def record_of_user(self, uid: int, event: str, text: Words) -> None:
        """Record what concerns a user and no job."""
        self._note(Record(self.now, event, None, text, {}, uid=uid))

    def record_of_submission(self, event: str, reason: Reason, job: str, spec: JobSpec) -> None:
        """Record what happens to a job that is not admitted."""
        facts = {"code": reason.code.value, **reason.data}
        self._note(Record(self.now, event, None, reason.message, facts, job, spec.name, spec.uid))

    def record_reason(
        self, event: str, reason: Reason, text: Words = "", *, job: Job | None = None, gpu: str | None = None
    ) -> None:
        """Record a reason, with its numbers. `text` replaces the message if that addresses another reader."""
        self._keep(event, text or reason.message, job, gpu, {"code": reason.code.value, **reason.data})

    def _keep(self, event: str, text: Words, job: Job | None, gpu: str | None, facts: dict[str, object]) -> None:
        record = Record(self.now, event, gpu, text, facts)
        if job is not None:
            record = Record(self.now, event, gpu, text, facts, job.id, job.spec.name, job.spec.uid)
        self._note(record)
        if job is not None:
            share = ALL_STORIES // max(1, len(self.state.jobs))
            keep(job.story, record, max(LEAST_LINES, min(STORY_LINES, share)))

    def _note(self, record: Record) -> None:
        self.out.append(Log(record))
        keep(self.state.records, record)


def keep(records: list[Record], record: Record, most: int = STORY_LINES) -> None:
    """Append, and forget the oldest when there are more than twice as many as are kept."""
    records.append(record)
    if len(records) > 2 * most:
        del records[:-most]
