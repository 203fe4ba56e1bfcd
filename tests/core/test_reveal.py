"""What one user is told of another's jobs: every story of test_messages.py, told again with three users.

Each message is read by the user that it is for. Whatever `reveal` withholds must not be in it: neither in its text nor
in its data. The messages that do speak of somebody else's job are kept in mentions.txt, as each setting has them.
GPUSHARE_TEST_UPDATE=1 writes the file again.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import gpushared
from core import tale as words_of_tales
from core import test_messages as messages
from gpushare.job_spec import JobSpec
from gpushare.quantity import Quantity
from gpushare.reasons import Mention, Reason, Text, joined, words
from gpushared.core import visibility
from gpushared.core.events import JobSubmitted, ProcessJoined, ReservationAsked
from gpushared.core.instructions import Instruction, Log, Record
from gpushared.core.visibility import OPERATOR, Viewer
from gpushared.jobs.registry import killed_facts
from property.world import World

GOLDEN = Path(__file__).with_name("mentions.txt")
SOURCES = Path(gpushared.__file__).parent
LEVELS = ("name", "user", "none")
USERS = {"alice": 1001, "bob": 1002, "carol": 1003}


def whose(name: str) -> str:
    """In most stories a borrower, its owner, and others."""
    return {"train": "alice", "serve": "bob", "full-1": "alice", "large": "alice", "other": "bob", "x": "alice"}.get(
        name, "carol"
    )


def spec(name: str, request: str, limit: str, **more: object) -> JobSpec:
    user = whose(name)
    amounts = Quantity.parse(request), Quantity.parse(limit)
    return JobSpec(f"{name}-of-{user}", USERS[user], user, ("python",), *amounts, **more)


@dataclass
class Letter:
    """A message, and the user that it is for."""

    kind: str
    uid: int
    reason: Reason


@dataclass
class Post:
    """All that was said in one story."""

    title: str
    letters: list[Letter] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


class Listener:
    """Stands in for messages.listen: it knows for whom each instruction is."""

    def __init__(self, post: Post) -> None:
        self.post = post

    def __call__(self, world: World, heard: messages.Heard) -> None:
        users: dict[object, int] = {}
        jobs: dict[int, object] = {}
        handle = world.node.handle

        def and_hear(event: object, now: float) -> list[Instruction]:
            if isinstance(event, JobSubmitted):
                users[event.job] = event.spec.uid
            elif isinstance(event, ReservationAsked):
                users[event.reservation] = event.spec.uid
            elif isinstance(event, ProcessJoined):
                jobs[event.process] = event.job
            out = handle(event, now)  # type: ignore[arg-type]
            for one in out:
                if isinstance(one, Log):
                    self.post.records.append(one.record)
                elif isinstance(reason := getattr(one, "reason", None), Reason):
                    about = [getattr(one, key, None) for key in ("job", "reservation")]
                    about.append(jobs.get(getattr(one, "process", None)))  # type: ignore[arg-type]
                    uid = next((users[key] for key in about if key in users), None)
                    if uid is not None:  # else nobody's: no job of that id
                        self.post.letters.append(Letter(type(one).__name__, uid, reason))
            return out

        world.node.handle = and_hear  # type: ignore[method-assign]
        messages_listen(world, heard)


messages_listen = messages.listen


@pytest.fixture(scope="module")
def posts() -> Iterator[list[Post]]:
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (words_of_tales, messages):
            patch.setattr(module, "spec", spec)
        all_of = messages.wait_report.all_of
        for title, tell in messages.STORIES:
            post = Post(title)

            def and_keep(state: object, now: float, post: Post = post) -> list[object]:
                waiting = all_of(state, now)  # type: ignore[arg-type]
                post.letters += [Letter("explain", one.uid, one.reason) for one in waiting]
                return waiting  # type: ignore[return-value]

            patch.setattr(messages, "listen", Listener(post))
            patch.setattr(messages.wait_report, "all_of", and_keep)
            tale = messages.Tale(messages.Heard())
            tale.sections.append(messages.Section(title, []))
            tell(tale)
            found.append(post)
    assert sum(len(post.letters) for post in found) > 50
    yield found


def withheld(uid: int, level: str) -> list[str]:
    """What must not be in anything that this user reads."""
    others = [user for user, one in USERS.items() if one != uid]
    names = [] if level == "name" else [f"-of-{user}" for user in others]
    return names + (others if level == "none" else [])


@pytest.mark.parametrize("level", LEVELS)
def test_nobody_reads_what_is_withheld(posts: list[Post], level: str) -> None:
    for post in posts:
        for letter in post.letters:
            told = Viewer(letter.uid, level).told(letter.reason)
            said = told.render() + json.dumps(told.data)
            if letter.kind in ("Kill", "Terminate"):
                said += json.dumps(Viewer(letter.uid, level).facts(killed_facts(letter.reason)))
            assert not [word for word in withheld(letter.uid, level) if word in said], (post.title, said)
        for record in post.records:
            readers = USERS.values() if record.uid is None or level == "name" else (record.uid,)
            for uid in readers:
                viewer = Viewer(uid, level)
                said = viewer.words(record.text) + json.dumps(viewer.facts(record.facts))
                assert not [word for word in withheld(uid, level) if word in said], (post.title, said)
                assert uid == record.uid or "python[" not in said, "what others run is not told, whatever is revealed"


@pytest.mark.parametrize("level", LEVELS)
def test_own_jobs_are_told_in_full(posts: list[Post], level: str) -> None:
    """Nothing is masked that is the reader's own, and nothing at all for administrators."""
    for post in posts:
        for letter in post.letters:
            full = OPERATOR.told(letter.reason)
            assert Viewer(letter.uid, level, admin=True).told(letter.reason) == full
            mine = next(user for user, uid in USERS.items() if uid == letter.uid)
            seen = Viewer(letter.uid, level).told(letter.reason).render()
            assert full.render().count(f"-of-{mine}") == seen.count(f"-of-{mine}")


def test_the_messages_that_speak_of_others(posts: list[Post]) -> None:
    """A new one must be read aloud as each setting has it, and be added."""
    told = "\n\n".join(dict.fromkeys(text for post in posts for text in _mentioning(post))) + "\n"
    if os.environ.get("GPUSHARE_TEST_UPDATE"):
        GOLDEN.write_text(told)
    changes = difflib.unified_diff(GOLDEN.read_text().splitlines(), told.splitlines(), "mentions.txt", "now", n=2)
    assert not (difference := "\n".join(changes)), f"{difference}\nif so it should be: GPUSHARE_TEST_UPDATE=1"


def _mentioning(post: Post) -> Iterator[str]:
    for letter in post.letters:
        yield from _at_each_level(
            f"{letter.kind}, {letter.reason.code}",
            [Viewer(letter.uid, level).told(letter.reason).render().splitlines() for level in LEVELS],
        )
    for record in post.records:
        if record.uid is not None:
            texts = [[Viewer(record.uid, level).words(record.text)] for level in LEVELS]
            yield from _at_each_level(f"record, {record.event}", texts)


def _at_each_level(title: str, told: list[list[str]]) -> Iterator[str]:
    lines = [same for same in zip(*told, strict=True) if len(set(same)) > 1]
    if lines:
        shown = [
            f"{level}  {' '.join(line.split())}" for same in lines for level, line in zip(LEVELS, same, strict=True)
        ]
        yield "\n".join([f"[{title}]", *shown])


# ---- the sources -----------------------------------------------------------------------------------

MAY_READ_NAMES = {
    ("visibility.py", "name"): "makes mentions",
    ("visibility.py", "who"): "makes mentions",
    ("visibility.py", "user"): "makes mentions",
    ("visibility.py", "_shown"): "shortens what the others make mentions of",
    ("visibility.py", "reserved"): "makes mentions",
    ("visibility.py", "bare_name"): "makes mentions",
    ("visibility.py", "bare_user"): "makes mentions",
    ("views.py", "reservation"): "asks the viewer in the same line",
    ("wait_report.py", "each_of"): "a field of its own: who may not see the name does not see the wait",
    ("wait_report.py", "_wait_of"): "likewise",
    ("transaction.py", "_keep"): "likewise",
    ("transaction.py", "record_of_submission"): "likewise",
    ("registry.py", "find"): "looks among what the viewer may know",
    ("routes.py", "reservation"): "looks among the caller's own",
    ("reservations.py", "_objection"): "compares the names of one user's",
    ("handshake.py", "_newcomer"): "for the process's own page",
    ("registry.py", "who"): "for the daemon's log",
    ("stopping.py", "stop_job"): "for the daemon's log",
    ("access.py", "admit"): "the caller's own name",
    ("history.py", "_whose"): "is kept beside the figures; each answer shows what its viewer may know",
}


def test_names_become_text_only_as_mentions() -> None:
    """Whoever reads the name or the user of a job beside this list has to say here why that is nobody else's."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Attribute) and node.attr in ("name", "user") and _is_spec(node.value):
                        found[path.name, function.name] = f"{path.name}:{node.lineno} {ast.unparse(node)}"
    strangers = [found[key] for key in found.keys() - MAY_READ_NAMES.keys()]
    assert not strangers, "a name in plain text: use visibility.name() or visibility.who()\n" + "\n".join(strangers)
    assert not MAY_READ_NAMES.keys() - found.keys(), "no longer so"


def _is_spec(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "spec") or (
        isinstance(node, ast.Name) and node.id == "spec"
    )


# ---- the parts -------------------------------------------------------------------------------------


def test_a_text_with_mentions_is_no_string() -> None:
    text = words("owed to ", visibility.who(spec("train", "1Gi", "1Gi")), ", at once")
    assert isinstance(text, Text)
    for flattened in (str, repr and "{}".format, lambda one: f"{one}", json.dumps):
        with pytest.raises(TypeError):
            flattened(text)
    assert words("a", words("b", "c")) == "abc", "nobody is mentioned"
    assert joined(", ", []) == ""
    assert joined(", ", ["a", "b"]) == "a, b"


@pytest.mark.parametrize(
    ("level", "says", "name", "user"),
    [
        ("name", "train-of-alice (alice)", "train-of-alice", "alice"),
        ("user", "a job of alice", None, "alice"),
        ("none", "another user's job", None, None),
    ],
)
def test_the_rule(level: str, says: str, name: str | None, user: str | None) -> None:
    one = spec("train", "1Gi", "1Gi")
    stranger, root, owner = Viewer(1, level), Viewer(0, level), Viewer(one.uid, level)
    data = {"owner": visibility.bare_name(one), "more": [{"user": visibility.bare_user(one)}], "loan": 3}
    assert stranger.words(words(visibility.who(one))) == says
    assert stranger.facts(data) == {"owner": name, "more": [{"user": user}], "loan": 3}
    for viewer in (root, owner, Viewer(1, level, admin=True)):
        assert viewer.words(words(visibility.who(one))) == "train-of-alice (alice)"
        assert viewer.facts(data) == {"owner": "train-of-alice", "more": [{"user": "alice"}], "loan": 3}
    assert (stranger.sees_name(one.uid), stranger.sees_user(one.uid)) == (name is not None, user is not None)


def test_a_reason_that_names_a_job_in_plain_text_is_found() -> None:
    """The test above would fail for it: this one shows that it can."""
    leak = Reason(messages.Code.NOT_FREE, "held by train-of-alice")
    told = Viewer(USERS["bob"], "user").told(leak).render()
    assert [word for word in withheld(USERS["bob"], "user") if word in told]
    assert isinstance(visibility.name(spec("train", "1Gi", "1Gi")), Mention)
