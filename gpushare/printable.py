"""Text of others, made fit for a terminal.

Names, commands and paths belong to other users, and a terminal obeys control characters: a job's command could repaint
an administrator's screen. Each exit to a terminal passes its text through `printable`; JSON keeps the data as they are.
"""

from __future__ import annotations

__all__ = ["one_line", "printable", "shortened"]


def one_line(text: str) -> str:
    """The text with each character that is not for reading written as its escape: \\x1b, \\n, \\u202e, \\ud800.

    Those are control characters, marks of direction, blanks other than the space, private and unassigned code points,
    and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def printable(text: str) -> str:
    """The same for a text of several lines: line ends and tabs stay."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def shortened(command: list[str], most: int) -> list[str]:
    """At most so many characters of a command line, which may have megabytes."""
    words, left = [], most
    for word in command:
        if left <= 0:
            break
        words.append(word[:left])
        left -= len(word) + 1
    return words
