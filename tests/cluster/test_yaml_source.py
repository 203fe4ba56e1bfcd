"""Files that people write: exact numbers, and complaints that name the file, the line, the path and the way out."""

from __future__ import annotations

import pytest

from gpushare.cluster import yaml_source
from gpushare.cluster.yaml_source import FileError, load, parse, parse_gpus
from gpushare.errors import QuantityError


def complaint(text: str, read, file: str = "c.yaml") -> FileError:
    with pytest.raises(FileError) as caught:
        read(parse(text, file))
    return caught.value


def test_numbers_keep_their_digits() -> None:
    tree = parse("a: 0.1\nb: 0.30\nc: 12\n", "c.yaml")
    assert [tree[key].gpus() for key in "abc"] == [100_000, 300_000, 12_000_000]
    assert parse('{"a": 0.1}', "c.json")["a"].gpus() == 100_000


@pytest.mark.parametrize(("text", "micro"), [("2", 2_000_000), ("0.000001", 1), ("25%", 250_000), ("1.50", 1_500_000)])
def test_amounts_of_gpus(text: str, micro: int) -> None:
    assert parse_gpus(text) == micro


@pytest.mark.parametrize("text", ["-1", "0.0000001", "1e3", "a", "", "nan", "1.", "0x1", "9" * 40])
def test_amounts_that_are_refused(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_gpus(text)
    assert caught.value.hint


def test_words_that_yaml_would_change_stay_words() -> None:
    tree = parse("on: yes\nno: off\n", "c.yaml")
    assert (tree["on"].text(), tree["no"].text()) == ("yes", "off")


def test_flags_and_nothing_are_plain_words_only() -> None:
    tree = parse("a: true\nb: 'true'\nc: null\nd: 'null'\ne:\n", "c.yaml")
    assert tree["a"].flag() is True
    assert tree["b"].text() == "true"
    assert "c" not in tree
    assert tree["d"].text() == "null"
    assert "e" not in tree


def test_a_wrong_value_is_named_with_file_line_and_path() -> None:
    text = "queues:\n  - name: a\n  - name: b\n    quota: lots\n"
    error = complaint(text, lambda tree: tree["queues"].entries()[1]["quota"].gpus())
    assert error.message == "c.yaml:4: queues[1].quota: cannot read 'lots' as a number of GPUs"
    assert error.hint == "write 2, 0.25 or 25%"
    assert error.exit_code == 2


def test_a_mistyped_key_gets_the_nearest_name() -> None:
    error = complaint("name: a\nquotta: 3\n", lambda tree: tree.only("name", "quota"))
    assert error.message == "c.yaml:2: unknown key 'quotta'"
    assert error.hint == "did you mean quota?"


def test_a_missing_key() -> None:
    error = complaint("given:\n  x: 1\n", lambda tree: tree["given"]["nodes"])
    assert error.message == "c.yaml:2: given: nodes is missing"


@pytest.mark.parametrize(
    ("text", "file", "words"),
    [
        ("a: [1\nb: 2\n", "c.yaml", "not YAML"),
        ("a: 1\na: 2\n", "c.yaml", "c.yaml:2: the key 'a' stands twice"),
        ("", "c.yaml", "is empty"),
        ("a: &x [*x]\n", "c.yaml", "nested too deeply"),
        ("? [1]\n: 2\n", "c.yaml", "not a word"),
        ('{"a": 1, "a": 2}', "c.json", "stands twice"),
        ('{"a": \n]', "c.json", "c.json:2: not JSON"),
        ("[" * 100_000, "c.json", "nested too deeply"),
        ("\x00", "c.yaml", "not YAML"),
    ],
)
def test_files_that_cannot_be_read(text: str, file: str, words: str) -> None:
    error = complaint(text, lambda tree: tree, file)
    assert words in error.message
    assert error.hint


def test_aliases_of_aliases_do_not_fill_the_memory(monkeypatch) -> None:
    monkeypatch.setattr(yaml_source, "MOST_ITEMS", 10_000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than" in complaint("\n".join(lines), lambda tree: tree).message


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(FileError, match="No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(FileError, match="not UTF-8"):
        load(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("value", "method", "words"),
    [
        ("[1]", "text", "a list is not a word"),
        ("a b", "name", "not a name"),
        ("1.5", "integer", "not a whole number"),
        ("-1", "integer", "out of range"),
        ("yes", "flag", "not true or false"),
        ("4096", "bytes", "no unit"),
        ("0.5", "bytes", "not an amount of memory in bytes"),
        ("soon", "seconds", "cannot read 'soon' as a duration"),
        ("x", "keys", "not a mapping"),
    ],
)
def test_values_of_the_wrong_kind(value: str, method: str, words: str) -> None:
    error = complaint(f"a: {value}", lambda tree: getattr(tree["a"], method)())
    assert words in error.message
    assert error.message.startswith("c.yaml:1: a: ")


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("a b", "write at most 200 letters without blanks"),
        ("a b,", "write at most 200 letters without blanks"),
        ("n-1, n-2", "write a list: [n-1, n-2]"),
    ],
)
def test_what_to_write_instead_of_what_is_not_a_name(value: str, hint: str) -> None:
    assert complaint(f"a: {value}", lambda tree: tree["a"].name()).hint == hint


@pytest.mark.parametrize(("text", "good"), [("[1, 2, 3, 4]", True), ("[1, 2, 3, 4, 5]", False)])
def test_as_many_values_as_are_read_and_one_more(tmp_path, monkeypatch, text: str, good: bool) -> None:
    """Aliases of aliases would fill the memory."""
    monkeypatch.setattr(yaml_source, "MOST_ITEMS", 6)  # with the file itself and the list
    path = tmp_path / "c.yaml"
    path.write_text(f"a: {text}\n")
    if good:
        yaml_source.load(path)
    else:
        with pytest.raises(FileError, match="more than 6 values"):
            yaml_source.load(path)
