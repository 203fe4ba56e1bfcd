"""What is said of files that people write: what stands there instead, nesting, slips, files of nearly that name."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from gpushare.cluster import yaml_source
from gpushare.cluster.yaml_source import DEEPEST, FileError, Item, load, parse, parse_gpus, parse_line
from gpushare.errors import QuantityError


def told(read: Any, *given: Any) -> tuple[str, str]:
    with pytest.raises(FileError) as caught:
        read(*given)
    assert caught.value.code == "bad_file"
    return caught.value.message, caught.value.hint or ""


LONG = "x" * 41
CUT = f"{'x' * 37}..."


@pytest.mark.parametrize(
    ("text", "method", "said", "hint"),
    [
        ("a: [1]", "flag", "a list is not true or false", "write true or false"),
        ("a: {b: 1}", "flag", "a mapping is not true or false", "write true or false"),
        ("a: 1", "flag", "'1' is not true or false", "write true or false"),
        ("a: true", "integer", "true is not a whole number", "write a number from 0 to 9"),
        ("a: false", "gpus", "false is not a number of GPUs", "write 2, 0.25 or 25%"),
        (f"a: {LONG}", "flag", f"'{CUT}' is not true or false", ""),
        (f"a: {LONG[1:]}", "flag", f"'{LONG[1:]}' is not true or false", ""),
        (
            "a: {b: 1}",
            "text",
            "braces begin a mapping, and a word is needed",
            'quote a name with braces in it: "{}-node"',
        ),
        ("a: [1]", "text", "a list is not a word", "write a name or a number here"),
        ("a: ''", "text", "'' is not a word", "write a name or a number here"),
        ("a: a b", "name", "'a b' is not a name", "write at most 200 letters without blanks"),
        ("a: 'a, b'", "name", "'a, b' is not a name", "write a list: [a, b]"),
        ("a: 'a ,'", "name", "'a ,' is not a name", "write at most 200 letters without blanks"),
        (f"a: {'x' * 201}", "name", f"'{CUT}' is not a name", "write at most 200 letters without blanks"),
        ("a: 10", "integer", "10 is out of range", "write a number from 0 to 9"),
        ("a: 99999999999999999999", "integer", "99999999999999999999 is out of range", "write a number from 0 to 9"),
        ("a: -1", "integer", "-1 is out of range", "write a number from 0 to 9"),
        ("a: 1.5", "integer", "'1.5' is not a whole number", "write a number from 0 to 9"),
        ("a: 50%", "bytes", "'50%' is not an amount of memory in bytes", "write bytes with a unit: 80Gi"),
        ("a: soon", "seconds", "cannot read 'soon'", ""),
        ("a: c", "choice", "'c' is not known here", "write one of pack, spread"),
        ("a: packs", "choice", "'packs' is not known here", "did you mean pack?"),
        ("a: 1", "keys", "'1' is not a mapping", "write `key: value` lines here"),
    ],
)
def test_what_stands_there_instead(text, method, said, hint):
    item = parse(text, "c.yaml")["a"]
    given = {"integer": (0, 9), "choice": ("pack", "spread")}.get(method, ())
    message, way_out = told(getattr(item, method), *given)
    assert message.startswith(f"c.yaml:1: a: {said}") and hint in way_out


@pytest.mark.parametrize(("most", "bounds"), [(2**31 - 1, " from 0 to 2147483647"), (2**31, ""), (10**12, "")])
def test_a_bound_that_nobody_meets_is_not_named(most, bounds):
    item = parse("a: x", "c.yaml")["a"]
    assert told(item.integer, 0, most)[1] == f"write a number{bounds}"


@pytest.mark.parametrize(
    ("text", "values"),
    [("a:", []), ("a: 1", ["1"]), ("a: [1, 2]", ["1", "2"]), ("a: []", []), ("a: {b: 1}", [{"b": "1"}])],
)
def test_one_value_is_a_list_of_one(text, values):
    (item,) = (one for _, one in parse(text, "c.yaml").pairs())
    assert [one.plain() for one in item.entries()] == values


def test_the_tree_without_places():
    text = "a: {b: [1, true, x], c: null}\nd: 2\n"
    assert parse(text, "c.yaml").plain() == {"a": {"b": ["1", True, "x"], "c": None}, "d": "2"}
    tree = parse('{"a": {"b": [1, true, 0.10]}}', "c.json")
    assert tree.plain() == {"a": {"b": ["1", True, "0.10"]}}
    assert tree["a"]["b"].entries()[2].path == "a.b[2]" and "a" in tree and "x" not in tree and tree.keys() == ["a"]
    assert parse_line('{"a": [{"b": 1}]}', "t.jsonl", 7)["a"].entries()[0]["b"] == Item("1", "t.jsonl", "a[0].b", 7)


# ---- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "said", "hint"),
    [
        ("c.yaml", "", "{} is empty", "gpushare docs cluster"),
        ("c.yaml", "# words\n", "{} is empty", "gpushare docs cluster"),
        ("c.yaml", "a:\n\tb: 1\n", "{}:2: not YAML: a tab", "indent with blanks"),
        ("c.yaml", "a: n-{}\nb: {c: {}-n}\n", "{}:2: not YAML: braces in a name", 'quote it: "{}-n"'),
        ("c.yaml", "a: [1\nb: 2\n", "{}:2: not YAML: ", "check brackets, quotes and indentation up to there"),
        ("c.yaml", "a: 1\na: 2\n", "{}:2: the key 'a' stands twice", "remove one of them"),
        ("c.yaml", "b:\n  a: 1\n  a: 2\n", "{}:3: b: the key 'a' stands twice", "remove one of them"),
        ("c.yaml", "[1]: 2\n", "{}:1: a key that is not a word", "write `key: value` lines here"),
        ("c.yaml", "a: \x07\n", "{}: not YAML: ", "save it as plain UTF-8 text"),
        ("c.json", '{"a": 1, "a": 2}', "{}: the key 'a' stands twice in one mapping", "remove one of them"),
        ("c.json", '{\n"a" 1}', "{}:2: not JSON: ", "python -m json.tool"),
        ("c.json", "[" * (DEEPEST + 2) + "]" * (DEEPEST + 2), "{}: ", f"at most {DEEPEST} levels are read"),
        ("c.json", "[" * 200_000, "{}: nested too deeply", f"at most {DEEPEST} levels are read"),
        ("c.yaml", "[" * (DEEPEST + 2) + "]" * (DEEPEST + 2), "{}:1: ", f"at most {DEEPEST} levels are read"),
    ],
)
def test_slips(tmp_path: Path, name, text, said, hint):
    path = tmp_path / name
    path.write_text(text)
    message, way_out = told(load, path)
    assert message.startswith(said.replace("{}", str(path), 1)) and hint in way_out


@pytest.mark.parametrize("name", ["c.json", "c.yaml"])
def test_as_deep_as_is_read(tmp_path: Path, name):
    path = tmp_path / name
    path.write_text("[" * DEEPEST + "1" + "]" * DEEPEST)
    item = load(path)
    for _ in range(DEEPEST):
        (item,) = item.entries()
    assert item.value == "1"


def test_a_line_of_a_trace_is_named(tmp_path: Path):
    assert told(parse_line, "{", "t.jsonl", 9)[0].startswith("t.jsonl:9: not JSON: ")


def test_a_file_that_is_not_there_has_others_beside_it(tmp_path: Path, monkeypatch):
    (tmp_path / "cluster.yaml").write_text("a: 1")
    (tmp_path / "clusters").mkdir()
    message, hint = told(load, tmp_path / "clustre.yaml")
    assert message == f"cannot read {tmp_path / 'clustre.yaml'}: No such file or directory"
    assert hint == "did you mean cluster.yaml?"
    assert told(load, tmp_path / "other")[1] == "name a file in YAML or JSON"
    assert told(load, tmp_path / "none" / "x.yaml")[1] == "name a file in YAML or JSON"
    assert told(load, tmp_path / "clusters")[0] == f"cannot read {tmp_path / 'clusters'}: Is a directory"
    monkeypatch.setattr(yaml_source, "example", lambda path: Path("/installed/x.yaml"))
    assert told(load, tmp_path / "x.yaml")[1] == "the examples of this installation are elsewhere: /installed/x.yaml"


@pytest.mark.parametrize(("size", "good"), [(8, True), (9, False)])
def test_a_file_that_is_too_long(tmp_path: Path, monkeypatch, size, good):
    monkeypatch.setattr(yaml_source, "MOST_BYTES", 8)
    path = tmp_path / "c.yaml"
    path.write_text("a: " + "x" * (size - 3))
    if good:
        assert load(path)["a"].text() == "xxxxx"
    else:
        assert told(load, path) == (f"{path} has 9 bytes", "at most 8 are read")


def test_text_of_another_encoding(tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_bytes(b"a: \xff")
    assert told(load, path) == (f"{path}: byte 3 is not UTF-8", "save it as UTF-8 text")


def test_without_yaml_json_is_the_way_out(monkeypatch):
    real = builtins.__import__

    def without(name: str, *given: Any, **more: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError(name)
        return real(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert told(parse, "a: 1", "c.yaml") == ("c.yaml: PyYAML is not installed", "pip install pyyaml, or write JSON")
    assert parse('{"a": 1}', "c.json")["a"].text() == "1"


@pytest.mark.parametrize(
    ("text", "micro"),
    [(" 2 ", 2_000_000), ("25 %", 250_000), ("0", 0), ("10000000", 10**13), ("100%", 1_000_000), ("0.0001%", 1)],
)
def test_amounts(text, micro):
    assert parse_gpus(text) == micro


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.00001%", "0.00001% GPUs: more than six decimals"),
        ("10000001", "10000001 is not a number of GPUs"),
        ("-0.5", "-0.5 is not a number of GPUs"),
        ("%", "cannot read '%' as a number of GPUs"),
        ("1" * 31, f"cannot read '{'1' * 31}' as a number of GPUs"),
    ],
)
def test_amounts_that_are_none(text, said):
    with pytest.raises(QuantityError) as caught:
        parse_gpus(text)
    assert caught.value.message == said and caught.value.hint
