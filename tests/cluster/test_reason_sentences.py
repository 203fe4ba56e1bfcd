"""The sentences of reasons: one is not many, and what is asked for is said in the unit in which it was asked."""

from __future__ import annotations

import re

import pytest

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import Job, JobSubmitted, JobWithdrawn, Node, NodeAdded, Queue, QueueAdded, Selector, Tasks
from gpushare.cluster.quantity import MICRO, gpus
from gpushare.cluster.reasons import SENTENCES, Code, Reason

GIB = 2**30


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (Reason(Code.MOVED, {"moves": 1}), "room was made by moving 1 running task"),
        (Reason(Code.MOVED, {"moves": 2}), "room was made by moving 2 running tasks"),
        (
            Reason(Code.LIMIT, {"queue": "q", "limit": 2 * MICRO, "allocated": MICRO, "need": 2 * MICRO}),
            "the limit of q is 2, 1 is in use and 2 more are needed",
        ),
        (Reason(Code.GROWN, {"share": MICRO}), "there is room again for 1 GPU"),
        (Reason(Code.GROWN, {"share": gpus(0.7)}), "there is room again for 0.7 GPUs"),
        (
            Reason(Code.TAKEN, {"victims": tuple(f"j{n}" for n in range(10))}),
            "room was made by stopping j0, j1, j2, j3, j4, j5, j6, j7 and 2 more",
        ),
        (
            Reason(Code.NO_SPACE, {"free": MICRO, "largest": MICRO, "need": 2 * MICRO}),
            "1 GPU is free, the largest block is 1, 2 are needed",
        ),
        (Reason(Code.MOVED, {}), "moved"),
    ],
)
def test_the_words_go_with_the_number(reason: Reason, sentence: str) -> None:
    assert reason.message == sentence


@pytest.mark.parametrize("code", Code)
def test_no_sentence_counts_one_as_many(code: Code) -> None:
    """A number that stands before a noun in the plural must have the words for one, too."""
    sentences = SENTENCES[code]
    for sentence in (sentences,) if isinstance(sentences, str) else sentences:
        counted = re.sub(r"\{tasks:\w+\} of \{need\} are", "", sentence)  # there are at least two
        counted = counted.replace("the GPUs of {waits_for} are", "")  # a name
        assert not re.search(r"\{\w+\} (more )?(are|GPUs|jobs|tasks|running tasks)\b", counted), sentence


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        (Tasks(share=gpus(0.3)), "0 whole GPUs are free, the largest part of another is 0.25, 0.3 of a GPU is needed"),
        (
            Tasks(memory=24 * GIB, gpus=2),
            "0 whole GPUs are free, the largest part of another is 20.0 GiB, 24.0 GiB of each of 2 GPUs is needed",
        ),
        (Tasks(gpus=2), "no GPU is free, 2 are needed"),
        (Tasks(least=3, gpus=2), "no GPU is free, 3 blocks of 2 are needed"),
        (
            Tasks(least=3, share=gpus(0.3)),
            "0 whole GPUs are free, the largest part of another is 0.25, 3 times 0.3 of a GPU is needed",
        ),
    ],
)
def test_no_room_is_said_in_the_unit_of_the_request(tasks: Tasks, sentence: str) -> None:
    allocator = Allocator()
    allocator.handle([NodeAdded(Node("n", 2)), QueueAdded(Queue("q", quota=2 * MICRO))], 0)
    allocator.handle([JobSubmitted(Job(f"j{n}", "q", (Tasks(share=gpus(0.75)),))) for n in range(2)], 1)
    (action,) = allocator.handle(JobSubmitted(Job("late", "q", (tasks,), preemptible=True)), 2)
    reason = allocator.explain("late").reason
    if reason.code is Code.NO_SPACE:
        assert (action.reason.message, reason.message) == (sentence, sentence)
    else:
        pytest.fail(reason.message)


def test_without_any_node_and_without_one_that_matches() -> None:
    allocator = Allocator()
    allocator.handle(QueueAdded(Queue("q", quota=None)), 0)
    wanted = Selector(types=("A100", "H100"), labels=(("rack", "r1"),))
    allocator.handle([JobSubmitted(Job("any", "q")), JobSubmitted(Job("fine", "q", selector=wanted))], 1)
    assert allocator.explain("any").reason.message == "there is no node: 1 GPU needed"
    said = "no node that is there matches type A100 or H100 and label rack=r1: 1 GPU needed"
    assert allocator.explain("fine").reason.message == said
    allocator.handle(JobWithdrawn("any"), 2)
    explained = allocator.explain("fine")
    assert explained.change == "add a node with 1 GPU of type A100 with label rack=r1"


def test_no_thousands_of_nodes_are_proposed() -> None:
    """To try out what a million tasks would need took minutes."""
    allocator = Allocator()
    allocator.handle([NodeAdded(Node("n", 8)), QueueAdded(Queue("q", quota=None))], 0)
    allocator.handle(JobSubmitted(Job("absurd", "q", (Tasks(least=10**6, gpus=2),))), 1)
    explained = allocator.explain("absurd")
    assert explained.reason.message == "8 GPUs are free, the largest block is 8, 1000000 blocks of 2 are needed"
    assert "node" not in explained.change
