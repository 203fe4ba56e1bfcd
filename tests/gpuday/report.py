"""The day's report as Markdown: what was asked, what the software driver answered, what this one did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuday.judge import SIDES, Result, told
from gpuday.table import Check

Recorded = dict[str, dict[str, dict[str, Any]]]
"""Check -> side -> answer -> value, as the software driver gave it."""

SHOWN_SIDES = {"values": "", "bare": "bare", "shim": "under gpushare"}
LONGEST = 120


def report(title: str, checks: tuple[Check, ...], results: list[Result], software: Recorded) -> str:
    """Ready for benchmarks/RESULTS.md."""
    by_name = {check.name: check for check in checks}
    return "\n".join([*_head(title, results), *_findings(results), *_tables(by_name, results, software)]) + "\n"


def _head(title: str, results: list[Result]) -> Iterator[str]:
    counts = {
        state: sum(result.state == state for result in results) for state in dict.fromkeys(r.state for r in results)
    }
    yield f"## {title}"
    yield ""
    seconds = sum(result.seconds for result in results)
    yield f"{len(results)} checks in {seconds:.0f} s: {', '.join(f'{n} {state}' for state, n in counts.items())}."
    yield ""


def _findings(results: list[Result]) -> Iterator[str]:
    found = [finding for result in results for finding in result.findings]
    broken = [result for result in results if result.state in ("failed", "timed out")]
    if not found and not broken:
        yield "Every assumption that was tested holds."
        yield ""
        return
    yield "### What is not as we assume"
    yield ""
    for result in broken:
        last = (result.error.splitlines() or ["no reason was given"])[-1]
        yield f"* **{result.number} {result.name} {result.state}**: {last}"
    for assumption, answers in told(found):
        yield f"* {assumption}"
        yield from (f"  * {answer}" for answer in answers)
    yield ""


def _tables(checks: dict[str, Check], results: list[Result], software: Recorded) -> Iterator[str]:
    for result in results:
        check = checks[result.name]
        yield f"### {result.number}. {result.name}: {result.state} ({result.seconds:.1f} s)"
        yield ""
        yield check.asks
        for part, why in result.skipped.items():
            yield f"Skipped: {part} ({why})."
        yield ""
        rows = list(_rows(check, result, software.get(result.name, {})))
        if rows:
            yield "| answer | | software driver | here | |"
            yield "|---|---|---|---|---|"
            yield from rows
            yield ""
        yield from _details(result, software.get(result.name, {}))


def _details(result: Result, recorded: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The entries of answers that are too long for the table: those that the software driver gave otherwise."""
    for side in SIDES:
        for name, value in result.side(side).items():
            if isinstance(value, dict) and _long(value):
                yield from _entries(name, value, recorded.get(side, {}).get(name))


def _entries(name: str, value: dict[str, Any], recorded: Any) -> Iterator[str]:
    known = recorded if isinstance(recorded, dict) else {}
    different = {key: one for key, one in value.items() if key not in known or known[key] != one}
    if different:
        yield f"<details><summary>{name}: {len(different)} of {len(value)} entries</summary>"
        yield ""
        yield "| | software driver | here |"
        yield "|---|---|---|"
        for key, one in different.items():
            yield f"| {_cell(key)} | {_cell(known.get(key, ''))} | {_cell(one)} |"
        yield ""
        yield "</details>"
        yield ""


def _rows(check: Check, result: Result, recorded: dict[str, dict[str, Any]]) -> Iterator[str]:
    judged = {(answer.side, answer.name) for answer in check.answers}
    wrong = {(finding.side, finding.answer): finding.assumption for finding in result.findings}
    for side in SIDES:
        theirs = recorded.get(side, {})
        for name, value in result.side(side).items():
            key = (side, name)
            verdict = f"**not as assumed: {wrong[key]}**" if key in wrong else "as assumed" if key in judged else ""
            known = _cell(theirs[name]) if name in theirs else ""
            yield f"| {name} | {SHOWN_SIDES[side]} | {known} | {_cell(value)} | {verdict} |"


def _long(value: Any) -> bool:
    return len(str(value)) > LONGEST


def _cell(value: Any) -> str:
    text = str(value).replace("|", "\\|").replace("\n", " ")
    if isinstance(value, dict | list) and _long(value):
        return f"{len(value)} entries, in the record"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
