"""Text of others, made fit for a terminal.

Names, commands and paths belong to other users, and a terminal obeys control characters: a job's command could repaint
an administrator's screen. Each exit to a terminal passes its text through `printable`; JSON keeps the data as they are.
"""

from __future__ import annotations

__all__ = ["one_line", "printable"]

KEPT = "\n\t"


def printable(text: str) -> str:
    """The text with each character that is not for reading written as its escape: \\x1b, \\u202e, \\ud800.

    Control characters, marks of direction, private and unassigned code points and lone surrogates are escaped. Line
    ends and tabs stay: who puts text of others into one line replaces those with `one_line`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in KEPT else _escaped(one) for one in text)


def one_line(text: str) -> str:
    """The same, for a word in a line or a cell of a table: no line ends and tabs either."""
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
