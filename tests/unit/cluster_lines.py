"""How many lines of the cluster's allocator decide: python tests/unit/cluster_lines.py

The counting rule. Each file of the allocator's core (CLUSTER in test_architecture.py) is one of these:

    words      what goes in and comes out: data without decisions
    reading    whether what comes in makes sense
    ledger     the state: who holds what, the index of free GPUs, undo
    events     what each event means for the state
    decides    all between state and actions: shares, orders, rules, searches, and what remembers for them
    answers    what is told to those who ask: explanations, views

All other files of gpushare/cluster (stores, scenarios, engines, services) are outside of the core. A file counts as a
whole. `lines` are all lines of a file; `code` is without comments, docstrings and blank lines. The bounds are in
test_sizes.py.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path
from typing import NamedTuple

CORE = Path(__file__).resolve().parents[2] / "gpushare" / "cluster"

PARTS = {
    "words": ["actions", "answers", "events", "model", "nouns", "quantity", "reasons"],
    "reading": ["checks"],
    "ledger": ["claimed", "classes", "jobs", "journal", "lists", "queues", "shapes", "sizes", "space", "state"],
    "events": ["apply", "attempts", "losses", "nodes"],
    "decides": [
        "ageing",
        "candidates",
        "clearing",
        "decide",
        "elastic",
        "holders",
        "holes",
        "lines",
        "moves",
        "news",
        "order",
        "placement",
        "plan",
        "proof",
        "room",
        "rules",
        "search",
        "shares",
        "singles",
        "starting",
        "transaction",
        "turn",
        "victims",
        "watch",
        "widening",
    ],
    "answers": ["allocator", "explain", "views"],
}

NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


class Size(NamedTuple):
    lines: int
    code: int


def size(name: str) -> Size:
    text = (CORE / f"{name}.py").read_text()
    said: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return Size(len(text.splitlines()), len(code - said))


def total(*parts: str) -> Size:
    sizes = [size(name) for part in parts for name in PARTS[part]]
    return Size(sum(one.lines for one in sizes), sum(one.code for one in sizes))


def main() -> None:
    known = {name for names in PARTS.values() for name in names}
    others = sorted(str(path.relative_to(CORE))[:-3] for path in CORE.rglob("*.py"))
    outside = [name for name in others if name not in known and not name.endswith("__init__")]
    for part, names in {**PARTS, "outside": outside}.items():
        sizes = {name: size(name) for name in names}
        print(f"{part}: {len(names)} files, {sum(s.lines for s in sizes.values()):,} lines, ", end="")
        print(f"{sum(s.code for s in sizes.values()):,} of code")
        for name, one in sizes.items():
            print(f"    {name:24} {one.lines:5} {one.code:5}")


if __name__ == "__main__":
    main()
