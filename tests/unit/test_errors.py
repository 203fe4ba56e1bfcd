"""The error tree, and the shape of every message."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from gpushare import errors
from gpushare.errors import GpushareError, render, told_in_full

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, GpushareError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_the_tree_in_the_docstring_is_the_tree(kind):
    assert re.search(rf"\b{kind.__name__} +{kind.exit_code} ", errors.__doc__)


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_survive_pickling(kind):
    error = kind("what happened", facts=[("a", "1")], hint="do this", code="why")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error) == "what happened", "as a traceback and logging show it"
    assert (copy.message, copy.facts, copy.hint, copy.code) == ("what happened", (("a", "1"),), "do this", "why")


def test_an_error_reads_as_its_message_whatever_it_is_made_of():
    class Gone(GpushareError):
        def __init__(self, pid):
            super().__init__(f"process {pid} is gone")

    assert str(Gone(7)) == "process 7 is gone"
    assert str(GpushareError(message="it failed")) == "it failed"


def test_codes_are_distinct():
    assert len({kind.code for kind in CLASSES}) == len(CLASSES)


def test_shape_of_a_message():
    assert render("it failed") == "gpushare: it failed"
    assert render("it failed", hint="try this") == "gpushare: it failed\n\nhint: try this"
    assert render("it failed", [("limit", "4 GiB"), ("in use", "3 GiB\nand more"), ("none", "")], "try this") == (
        "gpushare: it failed\n  limit   4 GiB\n  in use  3 GiB\n          and more\n  none\nhint: try this"
    )


@pytest.mark.parametrize(
    ("more", "notes"),
    [
        ({}, None),
        ({"hint": "try this"}, ["hint: try this"]),
        ({"facts": [("limit", "4 GiB")]}, ["  limit  4 GiB"]),
        ({"facts": [("limit", "4 GiB")], "hint": "try this"}, ["  limit  4 GiB\nhint: try this"]),
    ],
)
def test_a_traceback_shows_the_facts_and_the_hint_too(more, notes):
    with pytest.raises(GpushareError) as caught, told_in_full():
        raise GpushareError("it failed", **more)
    assert getattr(caught.value, "__notes__", None) == notes


def test_what_is_no_error_of_ours_is_told_as_it_is():
    with pytest.raises(KeyError) as caught, told_in_full():
        raise KeyError("x")
    assert not hasattr(caught.value, "__notes__")
