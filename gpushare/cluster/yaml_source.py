"""Files that people write, read so that every complaint names the file, the line, the path and the way out.

YAML and JSON give the same tree. Two habits of YAML are left out because they change what was written: `on`, `yes`
and `no` stay words, and a number keeps its digits (0.1 is a tenth, not the float beside it).

    item = load(path)                      the whole document
    item.only("nodes", "queues")           other keys are refused, with the nearest name
    for queue in item["queues"].entries(): queue["quota"].gpus()
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NoReturn

from gpushare.cluster.quantity import MICRO, MOST
from gpushare.errors import QuantityError, UsageError
from gpushare.nearest import did_you_mean
from gpushare.paths import example
from gpushare.quantity import Kind, Quantity, hint_for_something, parse_duration

__all__ = ["FileError", "Item", "load", "parse", "parse_gpus", "parse_line", "read_text"]

MOST_BYTES = 64 * 2**20  # a scenario is typed by a person; a trace has one line for a job
DEEPEST = 40
FAR = 2**31
"""A bound that nobody meets by mistake."""
MOST_ITEMS = 500_000  # an alias of aliases of aliases is small on disk

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)


class FileError(UsageError):
    """A file says something that we do not accept."""

    code = "bad_file"


@dataclass(frozen=True, slots=True)
class Item:
    """A place in a document: what stands there, and where that is."""

    value: Any  # a str for every number and word, bool, None, list[Item] or dict[str, Item]
    file: str
    path: str = ""
    line: int = 0

    def __getitem__(self, key: str) -> Item:
        found = self.get(key)
        if found is None:
            self.refuse(f"{key} is missing", hint=f"add `{key}: ...`")
        return found

    def get(self, key: str) -> Item | None:
        """The value of a key, None where it is not there or null."""
        found: Item | None = self._mapping().get(key)
        return None if found is None or found.value is None else found

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def only(self, *keys: str) -> Item:
        """Refuse keys with other names: a mistyped `quotta` must not mean no quota."""
        for key, item in self._mapping().items():
            if key not in keys:
                hint = did_you_mean(key, keys) or f"it takes {', '.join(keys)}"
                Item(item.value, self.file, self.path, item.line).refuse(f"unknown key {key!r}", hint=hint)
        return self

    def keys(self) -> list[str]:
        return list(self._mapping())

    def entries(self) -> list[Item]:
        """A list's items; a single value stands for a list of one, nothing for none."""
        if self.value is None:
            return []
        return self.value if isinstance(self.value, list) else [self]

    def pairs(self) -> Iterator[tuple[str, Item]]:
        yield from self._mapping().items()

    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    def text(self) -> str:
        if isinstance(self.value, dict):
            self.refuse(
                "braces begin a mapping, and a word is needed", hint='quote a name with braces in it: "{}-node"'
            )
        if not isinstance(self.value, str) or not self.value:
            self.refuse(f"{self._shown()} is not a word", hint="write a name or a number here")
        return self.value

    def name(self) -> str:
        """A name of something: no blanks, so that it can be typed and cut out of a table."""
        text = self.text()
        if len(text) > 200 or not text.isprintable() or any(letter.isspace() for letter in text):
            names = [word.strip() for word in text.split(",")]
            several = f"write a list: [{', '.join(names)}]" if len(names) > 1 and all(names) else ""
            self.refuse(f"{self._shown()} is not a name", hint=several or "write at most 200 letters without blanks")
        return text

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            self.refuse(f"{self._shown()} is not true or false", hint="write true or false")
        return self.value

    def integer(self, least: int = 0, most: int = 10**12) -> int:
        if not isinstance(self.value, str) or not re.fullmatch(r"-?[0-9]{1,100}", self.value, re.ASCII):
            bounds = f" from {least} to {most}" if most < FAR else ""
            self.refuse(f"{self._shown()} is not a whole number", hint=f"write a number{bounds}")
        number = int(self.value)
        if not least <= number <= most:
            self.refuse(f"{number} is out of range", hint=f"write a number from {least} to {most}")
        return number

    def gpus(self) -> int:
        """An amount of GPUs, in micro-GPU."""
        if not isinstance(self.value, str):
            self.refuse(f"{self._shown()} is not a number of GPUs", hint="write 2, 0.25 or 25%")
        try:
            return parse_gpus(self.value)
        except QuantityError as error:
            self.refuse(error.message, hint=error.hint)

    def bytes(self) -> int:
        try:
            quantity = Quantity.parse(self.text())
        except QuantityError as error:
            self.refuse(error.message, hint=hint_for_something(error))
        if quantity.kind is not Kind.BYTES:
            self.refuse(f"{self._shown()} is not an amount of memory in bytes", hint="write bytes with a unit: 80Gi")
        return quantity.value

    def seconds(self) -> float:
        try:
            return parse_duration(self.text())
        except QuantityError as error:
            self.refuse(error.message, hint=error.hint)

    def choice(self, *words: str) -> str:
        text = self.text()
        if text not in words:
            hint = did_you_mean(text, words) or f"write one of {', '.join(words)}"
            self.refuse(f"{text!r} is not known here", hint=hint)
        return text

    def refuse(self, message: str, *, hint: str | None = None) -> NoReturn:
        where = f"{self.file}:{self.line}" if self.line else self.file
        path = f"{self.path}: " if self.path else ""
        raise FileError(f"{where}: {path}{message}", hint=hint)

    def plain(self) -> Any:
        """The tree without places: strings, bools, lists and dicts."""
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        return self.value

    def _mapping(self) -> dict[str, Item]:
        if not isinstance(self.value, dict):
            self.refuse(f"{self._shown()} is not a mapping", hint="write `key: value` lines here")
        return self.value

    def _shown(self) -> str:
        if self.value is None:
            return "nothing"
        if isinstance(self.value, list | dict):
            return "a list" if isinstance(self.value, list) else "a mapping"
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return repr(self.value if len(self.value) <= 40 else f"{self.value[:37]}...")


def parse_gpus(text: str) -> int:
    """An amount of GPUs as micro-GPU, exactly: 2, 0.25, 25%. What a person writes is not rounded but refused."""
    trimmed = text.strip()
    percent = trimmed.endswith("%")
    digits = trimmed[:-1].strip() if percent else trimmed
    if not _NUMBER.fullmatch(digits) or len(digits) > 30:
        raise QuantityError(f"cannot read {text!r} as a number of GPUs", hint="write 2, 0.25 or 25%")
    try:
        amount = Decimal(digits) * MICRO / (100 if percent else 1)
        whole = int(amount)
    except InvalidOperation:
        raise QuantityError(f"cannot read {text!r} as a number of GPUs", hint="write 2, 0.25 or 25%") from None
    if amount != whole:
        raise QuantityError(f"{text} GPUs: more than six decimals", hint="a millionth of a GPU is the smallest part")
    if not 0 <= whole <= MOST:
        raise QuantityError(f"{text} is not a number of GPUs", hint=f"write a number from 0 to {MOST // MICRO}")
    return whole


def load(path: str | Path) -> Item:
    """Read a file: JSON where its name ends so, else YAML."""
    return parse(read_text(path), str(path))


def read_text(path: str | Path) -> str:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        hint = _other_file(Path(path)) or "name a file in YAML or JSON"
        raise FileError(f"cannot read {path}: {error.strerror}", hint=hint) from None
    if len(data) > MOST_BYTES:
        raise FileError(f"{path} has {len(data)} bytes", hint=f"at most {MOST_BYTES} are read")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: byte {error.start} is not UTF-8", hint="save it as UTF-8 text") from None


def _other_file(path: Path) -> str | None:
    """The example of that name, which is elsewhere in an installation; else files of nearly that name beside it."""
    installed = example(path)
    if installed is not None:
        return f"the examples of this installation are elsewhere: {installed}"
    try:
        return did_you_mean(path.name, [one.name for one in path.parent.iterdir() if one.is_file()])
    except OSError:
        return None


def parse(text: str, file: str) -> Item:
    if file.endswith(".json"):
        return _json(text, file)
    return _yaml(text, file)


def parse_line(text: str, file: str, line: int) -> Item:
    """One line of a file that has JSON in each."""
    return _json(text, file, line)


def _json(text: str, file: str, line: int = 0) -> Item:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in found]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise FileError(f"{file}: the key {twice[0]!r} stands twice in one mapping", hint="remove one of them")
        return dict(found)

    try:
        tree = json.loads(text, parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise FileError(
            f"{file}:{line or error.lineno}: not JSON: {error.msg}", hint="check it with python -m json.tool"
        ) from None
    except RecursionError:
        raise FileError(f"{file}: nested too deeply", hint=f"at most {DEEPEST} levels are read") from None
    return _from_json(tree, Item(None, file, "", line), 0)


def _from_json(tree: Any, place: Item, depth: int) -> Item:
    if depth > DEEPEST:
        place.refuse("nested too deeply", hint=f"at most {DEEPEST} levels are read")
    value = tree
    if isinstance(tree, dict):
        value = {
            key: _from_json(one, replace(place, path=_join(place.path, key)), depth + 1) for key, one in tree.items()
        }
    elif isinstance(tree, list):
        value = [_from_json(one, replace(place, path=f"{place.path}[{n}]"), depth + 1) for n, one in enumerate(tree)]
    return replace(place, value=value)


def _yaml(text: str, file: str) -> Item:
    try:
        import yaml
    except ModuleNotFoundError:
        raise FileError(f"{file}: PyYAML is not installed", hint="pip install pyyaml, or write JSON") from None
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        what, hint = _slip(text.splitlines()[line - 1 : line])
        raise FileError(f"{file}:{line}: not YAML: {what or error.problem}", hint=hint) from None
    except (yaml.YAMLError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise FileError(f"{file}: not YAML: {first}", hint="save it as plain UTF-8 text") from None
    if node is None:
        raise FileError(f"{file} is empty", hint="see `gpushare docs cluster` for what it may say")
    return _Yaml(file).item(node, "", 0)


def _slip(lines: list[str]) -> tuple[str | None, str]:
    """What is wrong with a line of YAML, if it is one of the two slips that everybody makes, and the way out."""
    line = lines[0] if lines else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "a tab", "indent with blanks"
    braces = re.search(r"""[:\s]([^\s"',:{]*\{\}[^\s"',:}]*)""", line)
    if braces:
        return "braces in a name", f'quote it: "{braces[1]}"'
    return None, "check brackets, quotes and indentation up to there"


class _Yaml:
    """From PyYAML's nodes, which know their lines."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.left = MOST_ITEMS

    def item(self, node: Any, path: str, depth: int) -> Item:
        self.left -= 1
        if self.left < 0:
            raise FileError(f"{self.file}: more than {MOST_ITEMS} values", hint="write aliases out, or fewer of them")
        line = node.start_mark.line + 1
        here = Item(None, self.file, path, line)
        if depth > DEEPEST:
            here.refuse("nested too deeply (or an alias of itself)", hint=f"at most {DEEPEST} levels are read")
        if node.id == "mapping":
            return Item(self._pairs(node, here, depth), self.file, path, line)
        if node.id == "sequence":
            items = [self.item(one, f"{path}[{n}]", depth + 1) for n, one in enumerate(node.value)]
            return Item(items, self.file, path, line)
        return Item(_scalar(node), self.file, path, line)

    def _pairs(self, node: Any, here: Item, depth: int) -> dict[str, Item]:
        found: dict[str, Item] = {}
        for key, value in node.value:
            if key.id != "scalar":
                here.refuse("a key that is not a word", hint="write `key: value` lines here")
            if key.value in found:
                place = Item(None, self.file, here.path, key.start_mark.line + 1)
                place.refuse(f"the key {key.value!r} stands twice", hint="remove one of them")
            found[key.value] = self.item(value, _join(here.path, key.value), depth + 1)
        return found


def _scalar(node: Any) -> Any:
    plain = not node.style  # None in PyYAML's own parser, "" in libyaml's; quoted and block scalars are always words
    if plain and node.value in ("", "~", "null"):
        return None
    if plain and node.value in ("true", "false"):
        return node.value == "true"
    return node.value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
