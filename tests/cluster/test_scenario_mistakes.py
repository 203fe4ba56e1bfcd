"""Mistakes in a scenario: file, line, path and the way out, whichever part of us finds them."""

from __future__ import annotations

import pytest

from gpushare.cluster import scenario
from gpushare.cluster.yaml_source import FileError

GIVEN = "given:\n  nodes: [{name: n, gpus: 2}]\n  queues: [{name: a, quota: 1}]\n"


@pytest.mark.parametrize(
    ("text", "place", "words", "hint"),
    [
        ("steps: [{when: [{stopped: j}]}]", "steps[0].when[0].stopped", "no job 'j'", "submitted before"),
        ("steps: [{when: [{end: j}]}]", "steps[0].when[0].end", "no job 'j'", "submitted before"),
        ("steps: [{then: {reason: {j: limit}}}]", "steps[0].then.reason", "no job 'j'", "submitted before"),
        (
            "steps: [{when: [{submit: {name: j, queue: a, gpus: 4}}], then: {reason: {j: lmit}}}]",
            "steps[0].then.reason.j",
            "'lmit' is not known here",
            "did you mean limit?",
        ),
        ("steps: [{then: {size: {j: 1}}}]", "steps[0].then.size.j", "no j here", "there are: none"),
        (
            "steps: [{when: [{break: {node: n, gpu: 0, at: 3}}]}]",
            "steps[0].when[0].break",
            "unknown key 'at'",
            "",
        ),
        ("steps: [{when: [{lose: m}]}]", "steps[0].when[0].lose", "no node 'm'", "there are: n"),
        ("steps: [{when: [{begin: n}]}]", "steps[0].when[0]", "begin", ""),
        ("steps: [{when: [{change: {job: j, pace: 1}}]}]", "steps[0].when[0].change", "unknown key 'pace'", ""),
        ("  jobs: [{name: j, queue: a, on: m}]", "given.jobs[0].on", "no node m", "there are: n"),
        ("steps: [{when: [{at: 10s}, {at: 5s}]}]", "steps[0].when[1].at", "it is 10 s already", "order"),
    ],
)
def test_a_mistake_has_its_place_and_the_way_out(tmp_path, text: str, place: str, words: str, hint: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(GIVEN + text + "\n")
    with pytest.raises(FileError) as caught:
        scenario.run(scenario.read(path))
    assert caught.value.message.startswith(f"{path}:4: {place}: "), caught.value.message
    assert words in caught.value.message
    assert hint in (caught.value.hint or "")


def test_steps_and_when_cannot_both_stand_at_the_top(tmp_path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(GIVEN + "steps: [{when: []}]\nwhen: []\n")
    with pytest.raises(FileError, match="both `steps` and `when` at the top"):
        scenario.read(path)
