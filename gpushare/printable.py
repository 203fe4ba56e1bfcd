"""Make text of other users safe for a terminal.

Other users choose names, commands and paths, and a terminal obeys control characters: a job's command could repaint an
administrator's screen. All text for a terminal passes through `printable`; JSON keeps the data as they are.
"""

from __future__ import annotations

__all__ = ["kept", "one_line", "printable", "shortened"]


def one_line(text: str) -> str:
    """The text with each unsafe character replaced by its escape: \\x1b, \\n, \\u202e, \\ud800.

    Unsafe are control characters, marks of direction, blanks other than the space, private and unassigned code points,
    and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def printable(text: str) -> str:
    """The same for text of several lines: line ends and tabs stay."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def kept(name: str) -> str:
    """A name as a daemon keeps it: with a question mark for each unsafe character."""
    return name if name.isprintable() else "".join(one if one.isprintable() else "?" for one in name)


def shortened(command: list[str], most: int) -> list[str]:
    """At most `limit` characters of a command line, which may have megabytes."""
    words, left = [], most
    for word in command:
        if left <= 0:
            break
        words.append(word[:left])
        left -= len(word) + 1
    return words
