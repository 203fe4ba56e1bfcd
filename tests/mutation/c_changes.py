"""The changes that can be made to a C source, found in its tokens.

What does not compile after a change, or compiles to the same code, is drawn again, so this need not know the grammar.
"""

from __future__ import annotations

import re

from mutation.change import Change

BLANKED = re.compile(
    rb"""/\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | ^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
"""Comments, strings, lines of the preprocessor."""
COMPARISON = re.compile(rb"(?<![<>\-=!])(<=|>=|==|!=|<(?!<)|>(?!>))(?=[ \n])")
FLIPPED = {
    b"<": (b"<=", b">="),
    b"<=": (b"<", b">"),
    b">": (b">=", b"<="),
    b">=": (b">", b"<"),
    b"==": (b"!=",),
    b"!=": (b"==",),
}
SIGN = re.compile(rb"(?<= )([+-])(=?)(?= )")
NUMBER = re.compile(rb"(?<![\w.])(\d+)(?=u?\b(?![\w.]))")
BOOLEAN = re.compile(rb"\b(true|false)\b")
CALL = re.compile(rb"(?<=[;{}):\n])[ \t\n]+(?P<call>(?:\(void\))?[a-z_]\w*\([^;{}]*\);)")
ASSIGNMENT = re.compile(rb"(?<=[;{}):\n])[ \t\n]+(?P<set>\**[a-z_][\w.\[\]]*(?:->[\w.\[\]>-]+)? = [^;{}]*;)")
EXIT = re.compile(rb"(?P<exit>\b(?:return\b[^;{}]*|continue|break|goto \w+);)")
IF = re.compile(rb"\b(?:if|while) (?=\()")
KEYWORDS = (b"return", b"if", b"while", b"for", b"switch", b"sizeof", b"do", b"else")


def changes(path: str, source: bytes) -> list[Change]:
    """All of them, in the order of the source."""
    blank = BLANKED.sub(lambda found: re.sub(rb"[^\n]", b" ", found.group()), source)
    found: list[Change] = []

    def add(start: int, end: int, becomes: bytes, operator: str) -> None:
        found.append(Change(path, start, end, becomes, operator))

    for one in COMPARISON.finditer(blank):
        for other in FLIPPED[one.group(1)]:
            add(*one.span(1), other, "comparison")
    for one in SIGN.finditer(blank):
        add(*one.span(1), b"-" if one.group(1) == b"+" else b"+", "sign")
    for one in NUMBER.finditer(blank):
        if not _is_hint(blank, one.start(1)):
            add(*one.span(1), str(int(one.group(1)) + 1).encode(), "constant")
    for one in BOOLEAN.finditer(blank):
        add(*one.span(1), b"false" if one.group(1) == b"true" else b"true", "boolean")
    for one in CALL.finditer(blank):
        if not one.group("call").startswith(KEYWORDS) and _in_function(blank, one.start("call")):
            add(*one.span("call"), b";", "call dropped")
    for one in ASSIGNMENT.finditer(blank):
        if _in_function(blank, one.start("set")):
            add(*one.span("set"), b";", "assignment dropped")
    for one in EXIT.finditer(blank):
        if _is_early(blank, one.start()):
            add(*one.span(), b";", "early exit dropped")
    for one in IF.finditer(blank):
        close = _closing(blank, one.end())
        inside = source[one.end() + 1 : close]
        add(one.end() + 1, close, b"!(" + inside + b")", "branches swapped")
    for one in re.finditer(rb"&&|\|\|", blank):
        _operands(blank, one.start(), add)
    return sorted(found, key=lambda change: (change.start, change.end, change.becomes))


def _is_hint(blank: bytes, at: int) -> bool:
    """What the compiler is told to expect: the program does the same without it."""
    expect = blank.rfind(b"__builtin_expect(", 0, at)
    if expect < 0:
        return False
    opening = blank.index(b"(", expect)
    last = blank.rindex(b",", 0, _closing(blank, opening))
    return opening < last < at < _closing(blank, opening)


def _in_function(blank: bytes, at: int) -> bool:
    return blank.count(b"{", 0, at) > blank.count(b"}", 0, at)


def _is_early(blank: bytes, at: int) -> bool:
    """Not the last statement of a function: it stands deeper than one block, or follows a condition."""
    deep = blank.count(b"{", 0, at) - blank.count(b"}", 0, at)
    return deep > 1 or (deep == 1 and blank[:at].rstrip().endswith(b")"))


def _closing(blank: bytes, at: int) -> int:
    """Where the parenthesis that opens at `at` is closed."""
    depth = 0
    for index in range(at, len(blank)):
        depth += {0x28: 1, 0x29: -1}.get(blank[index], 0)
        if depth == 0:
            return index
    raise ValueError("a parenthesis that nothing closes")


def _operands(blank: bytes, at: int, add) -> None:
    """Drop what stands left or right of an && or ||."""
    start = _edge(blank, at - 1, -1)
    end = _edge(blank, at + 2, 1)
    if start is not None and end is not None:
        after = at + 2 + (len(blank[at + 2 : end]) - len(blank[at + 2 : end].lstrip()))
        add(start, after, b"", "operand dropped")
        add(len(blank[:at].rstrip()), end, b"", "operand dropped")


def _edge(blank: bytes, at: int, step: int) -> int | None:
    """Where the operand ends that begins beside an operator."""
    opening, closing = (b"(", b")") if step > 0 else (b")", b"(")
    depth, index = 0, at
    while 0 <= index < len(blank):
        one = blank[index : index + 1]
        if one == opening:
            depth += 1
        elif one == closing:
            depth -= 1
        stops = one in (b",", b";", b"?", b":", b"{", b"}") or blank[index : index + 2] in (b"&&", b"||")
        if step < 0:
            stops = one in (b",", b";", b"?", b":", b"{", b"}") or blank[index - 1 : index + 1] in (b"&&", b"||")
            stops = stops or (one == b"=" and blank[index - 1 : index + 2] == b" = ")
            stops = stops or blank[max(0, index - 5) : index + 1] == b"return"
        if depth < 0 or (depth == 0 and stops):
            if step > 0:
                return len(blank[:index].rstrip())
            index += 1
            return index + len(blank[index:at]) - len(blank[index:at].lstrip())
        index += step
    return None
