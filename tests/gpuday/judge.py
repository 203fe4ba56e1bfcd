"""What the answers of a check mean: which assumption does not hold, and how the check ended. Computes, does no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuday.table import NOT_GIVEN, Answer, Check

SIDES = ("values", "bare", "shim")
LONGEST = 300
"""Characters of a value in a text for people."""


@dataclass(frozen=True)
class Finding:
    """An answer that is not as we assume, or is missing."""

    answer: str
    side: str
    value: Any
    wanted: str
    assumption: str
    says: str
    otherwise: str

    def __str__(self) -> str:
        where = "" if self.side == "values" else f" ({self.side})"
        return f"{self.answer}{where}: {_short(self.value)}, expected {_short(self.wanted)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... (all of it is in the record)"


@dataclass
class Result:
    """One line of the record. `rc` is None where the check was killed; `seconds` is its wall time."""

    number: int
    name: str
    rc: int | None = None
    seconds: float = 0.0
    state: str = "failed"
    values: dict[str, Any] = field(default_factory=dict)
    bare: dict[str, Any] = field(default_factory=dict)
    shim: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    error: str = ""

    def side(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self, name)
        return found

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def good(self) -> bool:
        return self.state in ("passed", "skipped")


def judge(check: Check, result: Result, software: dict[str, dict[str, Any]]) -> Result:
    """Fills in `findings` and `state`. `software` is side -> answer -> value, as recorded; {} where nothing was."""
    result.findings = [
        finding for answer in check.answers if (finding := _finding(answer, result, software)) is not None
    ]
    if result.rc is None:
        result.state = "timed out"
    elif result.rc != 0:
        result.state = "failed"
    elif result.findings:
        result.state = "otherwise"
    elif not any(result.side(side) for side in SIDES):
        result.state = "skipped" if result.skipped else "failed"
        result.error = result.error or ("" if result.skipped else "the check gave no answer")
    else:
        result.state = "passed"
    return result


def _finding(answer: Answer, result: Result, software: dict[str, dict[str, Any]]) -> Finding | None:
    recorded = software.get(answer.side, {}).get(answer.name, NOT_GIVEN)
    value = result.side(answer.side).get(answer.name, NOT_GIVEN)
    if value is NOT_GIVEN:
        if answer.part in result.skipped or result.rc != 0:
            return None  # a check that was ended or has failed says so itself
        value = "no answer"
    elif answer.fits(value, recorded):
        return None
    if answer.like_software and isinstance(value, dict) and isinstance(recorded, dict):
        names = [name for name in {**recorded, **value} if recorded.get(name) != value.get(name)]
        recorded = {name: recorded.get(name) for name in names}
        value = {name: value.get(name) for name in names}
    assumed = answer.assumes
    return Finding(
        answer.name, answer.side, value, answer.wanted(recorded), assumed.name, assumed.says, assumed.otherwise
    )


def told(findings: list[Finding]) -> Iterator[tuple[str, list[str]]]:
    """Findings for people: each assumption that does not hold, with the answers that say so."""
    for name in dict.fromkeys(finding.assumption for finding in findings):
        same = [finding for finding in findings if finding.assumption == name]
        says = f"The assumption {name!r} does not hold: {same[0].says}. So {same[0].otherwise}."
        yield says, [str(finding) for finding in same]


def exit_status(results: list[Result]) -> int:
    """0 if all is as assumed, 1 if a check failed, hung or found otherwise, 2 if nothing was answered."""
    if any(not result.good for result in results):
        return 1
    return 0 if any(result.state == "passed" for result in results) else 2
