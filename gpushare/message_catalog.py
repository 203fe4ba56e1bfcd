"""The catalog of messages: docs/reasons.md as data, and a search for its messages in any text.

### over_limit                                          the code
                                                        its messages, … for what differs; one that begins with
    cannot allocate … on GPU …: over this job's limit   `gpushare: ` is too common to be ours without that word

Why the allocation was refused.                         paragraphs, the last of which says
What to do: raise the limit.                            what to do
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from gpushare import manual

__all__ = ["Found", "Meaning", "meanings", "messages_in"]

GAP, OURS, REMEDY = "…", "gpushare: ", "What to do: "
FRAMEWORKS = "out_of_memory"
"""The code of the frameworks' own errors. Shown only if the text has no message of gpushare."""
LONGEST = 1000
"""Characters of a line that are searched. A line may have millions."""
CODE = re.compile(r"""(?:\bcode=|"code": *")([a-z_]+)\b""")
"""A code in a log or in JSON."""
FACT = re.compile(r"  (?P<label>\S.*?)(?:  +|$)(?P<text>.*)")
HINT = "hint: "


@dataclass(frozen=True, slots=True)
class Meaning:
    code: str
    messages: tuple[str, ...]
    what: str
    """Paragraphs, each one line."""
    remedy: str


@dataclass
class Found:
    """A message with its facts; of several messages with one code the last.

    One event may have several messages: a notice, the end, the exit message. `count` is how often this one occurred.
    """

    meaning: Meaning
    message: str
    facts: list[tuple[str, str]]
    count: int
    hint: str | None = None


@cache
def meanings() -> dict[str, Meaning]:
    return {one.code: one for one in _parse(manual.read("reasons"))}


def messages_in(lines: Iterable[str]) -> list[Found]:
    """The messages in the text, in the order of their first occurrence."""
    found: dict[str, Found] = {}
    came: Counter[tuple[str, str]] = Counter()
    last, margin = None, 0
    for raw in lines:
        line = raw.rstrip("\r\n")
        recognised = _recognise(line[:LONGEST])
        if recognised is not None:
            code = recognised[0]
            margin = line.find(OURS) if OURS in line else 0
            came[recognised] += 1
            message = line[margin:].removeprefix(OURS).strip()
            last = found[code] = Found(meanings()[code], message, [], came[recognised])
        elif last is not None and not _goes_on(last, line[margin:]):
            last = None
    if len(found) > 1:
        found.pop(FRAMEWORKS, None)
    return list(found.values())


def _goes_on(message: Found, line: str) -> bool:
    """Whether the line belongs to the message: a fact, the hint, or an empty line before them."""
    if line.startswith(HINT):
        message.hint = line.removeprefix(HINT)
        return False
    if fact := FACT.fullmatch(line):
        message.facts.append((fact["label"], fact["text"].strip()))
    elif message.facts and line.startswith("    "):
        label, text = message.facts.pop()
        message.facts.append((label, f"{text}\n{line.strip()}"))
    else:
        return not line
    return True


def _recognise(line: str) -> tuple[str, str] | None:
    """The code of a line, and which of its messages: the longest match, else a code that the line names."""
    matching = [(len(part), code, part) for part, pattern, code in _patterns() if part in line and pattern.search(line)]
    if matching:
        _, code, part = max(matching)
        return code, part
    named = CODE.search(line)
    return (named[1], "") if named and named[1] in meanings() else None


@cache
def _patterns() -> list[tuple[str, re.Pattern[str], str]]:
    """The patterns with their longest fixed part, which is searched first: a log may have a million other lines."""
    found = [(text, one.code) for one in meanings().values() for text in one.messages]
    return [(max(text.removeprefix(OURS).split(GAP), key=len), _pattern(text), code) for text, code in found]


def _pattern(message: str) -> re.Pattern[str]:
    common = message.startswith(OURS)
    body = ".+?".join(map(re.escape, message.removeprefix(OURS).split(GAP)))
    return re.compile(rf"\bgpushare\b[\w.]*: (?:.*: )?{body}" if common else body)


def _parse(text: str) -> Iterator[Meaning]:
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        code, _, rest = section.partition("\n")
        rest = re.split(r"^#", rest, flags=re.MULTILINE)[0]
        messages = [line.strip() for line in rest.splitlines() if line.startswith("    ")]
        prose = "\n".join(line for line in rest.splitlines() if not line.startswith("    "))
        paragraphs = [" ".join(part.split()) for part in re.split(r"\n{2,}", prose.strip())]
        *what, remedy = paragraphs
        yield Meaning(code.strip(), tuple(messages), "\n".join(what), remedy.removeprefix(REMEDY))
