"""The table of checks: what each asks, what we assume about its answers, and what breaks otherwise."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("checks.toml")
PARTS = (1, 2)
SECONDS = 600
"""The most that one part may take, in seconds: the sum of the time limits of its checks."""

NOT_GIVEN = object()


@dataclass(frozen=True)
class Assumption:
    name: str
    says: str
    otherwise: str


@dataclass(frozen=True)
class Answer:
    """What is expected of one answer. An answer that the table does not name is a figure: shown, never judged."""

    name: str
    assumes: Assumption
    side: str = "values"
    part: str = ""
    """Of a check: if it is skipped, the answer may be missing."""
    equals: Any = NOT_GIVEN
    least: float | None = None
    most: float | None = None
    like_software: bool = False
    factor: float = 1.0
    """With like_software, for numbers: how far apart the two may be."""

    def fits(self, value: Any, software: Any) -> bool:
        """Whether the answer is what the table expects. `software` is NOT_GIVEN where nothing was recorded."""
        if self.like_software:
            if software is NOT_GIVEN:
                return True
            if self.factor > 1 and isinstance(value, int | float) and isinstance(software, int | float):
                low, high = sorted((value, software))
                return bool(high <= low * self.factor)
            return bool(value == software)
        if self.equals is not NOT_GIVEN:
            return bool(value == self.equals)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def wanted(self, software: Any) -> str:
        """The expectation in words."""
        if self.like_software:
            near = f"within {self.factor:g} times of " if self.factor > 1 else ""
            return f"{near}the software driver's answer, {'none recorded' if software is NOT_GIVEN else software}"
        if self.equals is not NOT_GIVEN:
            return str(self.equals)
        bounds = [("at least", self.least), ("at most", self.most)]
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


@dataclass(frozen=True)
class Check:
    number: int
    name: str
    part: int
    seconds: float
    asks: str
    answers: tuple[Answer, ...]
    quick: bool = False
    """Whether it belongs to the short form."""


class BadTable(ValueError):
    """The table contradicts itself. The message says where."""


def load(file: Path = FILE) -> tuple[Check, ...]:
    """The checks in their order. Raises BadTable."""
    data = tomllib.loads(file.read_text())
    assumptions = {name: Assumption(name, **fields) for name, fields in data["assumption"].items()}
    checks = tuple(_check(fields, assumptions) for fields in data["check"])
    if [check.number for check in checks] != list(range(1, len(checks) + 1)):
        raise BadTable("the numbers of the checks are not 1, 2, 3, ...")
    if len({check.name for check in checks}) < len(checks):
        raise BadTable("two checks have the same name")
    for part in PARTS:
        seconds = sum(check.seconds for check in checks if check.part == part)
        if seconds > SECONDS:
            raise BadTable(f"part {part} may take {seconds:g} s, more than {SECONDS}")
    unused = assumptions.keys() - {answer.assumes.name for check in checks for answer in check.answers}
    if unused:
        raise BadTable(f"no answer tests these assumptions: {', '.join(sorted(unused))}")
    return checks


def _check(fields: dict[str, Any], assumptions: dict[str, Assumption]) -> Check:
    where = f"check {fields['number']}"
    if fields["part"] not in PARTS:
        raise BadTable(f"{where}: there is no part {fields['part']}")
    answers = tuple(_answer(where, one, assumptions) for one in fields.pop("answer", []))
    return Check(answers=answers, **fields)


def _answer(where: str, fields: dict[str, Any], assumptions: dict[str, Assumption]) -> Answer:
    name = fields.pop("assumes")
    if name not in assumptions:
        raise BadTable(f"{where}: there is no assumption {name!r}")
    answer = Answer(assumes=assumptions[name], **fields)
    kinds = (answer.equals is not NOT_GIVEN, answer.like_software, answer.least is not None or answer.most is not None)
    if sum(kinds) != 1:
        raise BadTable(f"{where}: {answer.name}: needs equals, or like_software, or least and most")
    if answer.side not in ("values", "bare", "shim"):
        raise BadTable(f"{where}: {answer.name}: there is no side {answer.side!r}")
    return answer
