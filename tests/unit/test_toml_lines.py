"""The line of each key of a TOML file, whatever stands around it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.toml_lines import Lines

ROOT = Path(__file__).resolve().parents[2]

TEXT = '''\
# a = 1
top = 1
dotted.key."with space" = "x # no comment"

[table] # [not.this]
a = """
b = 1
"quoted" \\""" still
"""
b = [ # a list
  "]", # with a bracket
  { c = 1, d = "}" },
]
'lit.eral' = 'no \\ escape'
"esc\\u00e4\\"" = true

  [ table . sub ]
  a = \'\'\'
[table.other]
\'\'\'\'
date = 1979-05-27T07:32:00Z

[[list]]
x = 1
[list.of]
y = 2
[[list]]
x = 3
[[list.inner]]
z = 4
[table.late]
inline = { deep = { deeper = 1 } }
'''


def test_every_key_has_its_line():
    tomllib.loads(TEXT)
    lines = Lines(TEXT)
    rows = TEXT.splitlines()
    for path, starts in {
        ("top",): "top =",
        ("dotted",): "dotted.",
        ("dotted", "key", "with space"): "dotted.",
        ("table",): "[table]",
        ("table", "a"): 'a = """',
        ("table", "b"): "b = [ #",
        ("table", "lit.eral"): "'lit.eral'",
        ("table", 'escä"'): '"esc',
        ("table", "sub"): "  [ table",
        ("table", "sub", "a"): "  a = '''",
        ("table", "sub", "date"): "date",
        ("list", 0): "[[list]]",
        ("list", 0, "x"): "x = 1",
        ("list", 0, "of", "y"): "y = 2",
        ("list", 1, "x"): "x = 3",
        ("list", 1, "inner", 0, "z"): "z = 4",
        ("table", "late", "inline"): "inline",
    }.items():
        assert rows[lines.of(path) - 1].startswith(starts), path
    # What is inside an inline table, or not there at all, is where its parent is.
    assert lines.of(("table", "late", "inline", "deep", "deeper")) == lines.of(("table", "late", "inline"))
    assert lines.of(("nothing",)) == 1


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_blanks_and_empty_lines_count_as_they_are(newline):
    rows = [
        " a = 1",
        "\tb = 2 ",
        "",
        "   ",
        " [t]",
        "c=3 # x",
        "#",
        "# [no]",
        '\t "d" \t.\te = """',
        "",
        '"""',
        "f = 'x'",
    ]
    lines = Lines(newline.join(rows))
    found = {
        path: lines.of(path) for path in (("a",), ("b",), ("t",), ("t", "c"), ("t", "d"), ("t", "d", "e"), ("t", "f"))
    }
    assert list(found.values()) == [1, 2, 5, 6, 9, 9, 12]
    assert Lines("\ufeff" + newline.join(rows)).of(("b",)) == 2, "a mark of the byte order is none of a key"


@pytest.mark.parametrize(
    ("written", "key"),
    [
        (r'"\u1e9e"', "\u1e9e"),
        (r'"\U0001f600!"', "\U0001f600!"),
        (r'"a\tb\n\\\""', 'a\tb\n\\"'),
        (r"'a\tb'", r"a\tb"),
        ('"a # b"', "a # b"),
    ],
)
def test_a_key_in_quotes_is_what_it_means(written, key):
    text = f"x = 1\n{written} = 2\n"
    assert tomllib.loads(text)[key] == 2 and Lines(text).of((key,)) == 2


def paths(value, at=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*at, key))
    yield at


@pytest.mark.parametrize("name", ["pyproject.toml", "daemon/deploy/gpushared.toml"])
def test_real_files(name):
    text = (ROOT / name).read_text()
    lines, rows = Lines(text), text.splitlines()
    for path in paths(tomllib.loads(text)):
        if path:
            assert str(path[-1]) in rows[lines.of(path) - 1], path


bare = st.text("abz09_-", min_size=1, max_size=4)
strings = st.text("ab#[]{}'\"\\\n=. ", max_size=8)
values = st.recursive(st.integers() | st.booleans() | strings, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


def written(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(c if c not in '"\\\n' else f"\\u{ord(c):04x}" for c in value) + '"'
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(written, value)) + "\n]" if value else "[ ]"
    return str(value)


@given(st.lists(st.tuples(st.sampled_from(["header", "comment", "blank", "pair"]), bare, values), max_size=12))
def test_files_made_at_random(parts):
    """Each key once, so that its line is the one on which it was written."""
    text, expected, table = "", {}, ()
    for number, (kind, word, value) in enumerate(parts):
        line = text.count("\n") + 1
        if kind == "header":
            table = (f"{word}{number}",)
            text += f"[{table[0]}]  # {word}\n"
            expected[table] = line
        elif kind == "comment":
            text += f"  # {word} = [\n"
        elif kind == "blank":
            text += "\n"
        else:
            path = (*table, f"{word}{number}")
            text += f"{path[-1]} = {written(value)} # {word}\n"
            expected[path] = line
    tomllib.loads(text)
    lines = Lines(text)
    assert {path: lines.of(path) for path in expected} == expected
