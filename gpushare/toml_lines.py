"""The line of each key in a TOML file: tomllib gives values without lines, and error messages name the line.

Only for text that tomllib has accepted; tomllib names the line of its own errors.
"""

from __future__ import annotations

from collections.abc import Iterator

Path = tuple[str | int, ...]
"""Keys from the top; a number counts the tables of a [[list]]."""

BLANKS = " \t"
ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\", "e": "\x1b"}


class Lines:
    """Line numbers, from 1, by path."""

    def __init__(self, text: str) -> None:
        self._found: dict[Path, int] = {}
        self._lists: dict[Path, int] = {}
        for path, line in _Scanner(text).statements(self._lists):
            for length in range(1, len(path)):
                self._found.setdefault(path[:length], line)
            self._found[path] = line

    def of(self, path: Path) -> int:
        """The line of the key, or of the table that contains it; else the first line."""
        while path and path not in self._found:
            path = path[:-1]
        return self._found.get(path, 1)


class _Scanner:
    """Reads the text once: headers and keys, but skips values."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1

    def statements(self, lists: dict[Path, int]) -> Iterator[tuple[Path, int]]:
        table: Path = ()
        while self._at < len(self._text):
            line = self._line
            match self._peek():
                case "\n":
                    self._step()
                case " " | "\t" | "\r" | "\ufeff":
                    self._at += 1
                case "#":
                    self._to_end_of_line()
                case "[":
                    table = self._header(lists)
                    yield table, line
                case _:
                    path = (*table, *self._key())
                    self._value()
                    yield path, line

    def _peek(self, length: int = 1) -> str:
        return self._text[self._at : self._at + length]

    def _step(self) -> None:
        """Skip one character."""
        self._line += self._text[self._at] == "\n"
        self._at += 1

    def _to_end_of_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _header(self, lists: dict[Path, int]) -> Path:
        listed = self._peek(2) == "[["
        self._at += 2 if listed else 1
        names = self._key()
        keys: Path = ()
        for count, name in enumerate(names, 1):
            keys = (*keys, name)
            if listed and count == len(names):
                lists[keys] = lists.get(keys, -1) + 1
            if keys in lists:
                keys = (*keys, lists[keys])
        self._to_end_of_line()
        return keys

    def _key(self) -> list[str]:
        """Read a dotted key, up to its = or ]."""
        parts: list[str] = []
        while True:
            character = self._peek()
            if character in ("=", "]", ""):
                return parts
            if character in BLANKS or character == ".":
                self._at += 1
            elif character in "\"'":
                parts.append(self._string())
            else:
                start = self._at
                while self._peek() not in ("", ".", "=", "]", " ", "\t"):
                    self._at += 1
                parts.append(self._text[start : self._at])

    def _value(self) -> None:
        """Skip from the = to the end of the statement."""
        depth = 0
        while self._at < len(self._text):
            character = self._peek()
            if character == "\n" and depth == 0:
                return
            if character == "#":
                self._to_end_of_line()
            elif character in "\"'":
                self._string()
            else:
                depth += character in "[{"
                depth -= character in "]}"
                self._step()

    def _string(self) -> str:
        """Skip a string of any of the four kinds. Returns its text, as far as a key may have it."""
        quote = self._peek()
        mark = quote * 3 if self._peek(3) == quote * 3 else quote
        self._at += len(mark)
        text = ""
        while self._at < len(self._text) and self._peek(len(mark)) != mark:
            if quote == '"' and self._peek() == "\\":
                text += self._escape()
            else:
                text += self._peek()
                self._step()
        self._at += len(mark)
        while len(mark) == 3 and self._peek() == quote:  # the string itself may end with quotes
            self._at += 1
        return text

    def _escape(self) -> str:
        letter = self._peek(2)[1:]
        digits = {"x": 2, "u": 4, "U": 8}.get(letter)
        self._at += 1
        if digits is None:
            self._step()
            return ESCAPES.get(letter, letter)
        code = self._text[self._at + 1 : self._at + 1 + digits]
        self._at += 1 + digits
        return chr(int(code, 16))
