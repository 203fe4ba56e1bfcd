"""`kubectl gpushare`: what it shows (kubectl.txt), with which rights, and of odd objects."""

from __future__ import annotations

import difflib
import json
import os
import random
import sys
from pathlib import Path

import pytest
import yaml
from kubectl_stage import Looked
from scheduler_stage import GIB
from test_scheduler_service import DEPLOY, resource, verb_of

from gpushare.cli import output
from gpushare.cluster.engines.kubernetes import views
from gpushare.errors import GpushareError, UsageError
from gpushare.kubernetes.access import Access, kubeconfigs
from gpushare.kubernetes.reader import own_access

GOLDEN = Path(__file__).with_name("kubectl.txt")
COMMANDS = (
    ("queues",),
    ("queue", "-n", "team-a"),
    ("jobs", "-A", "-q", "b"),
    ("explain", "team-a/train"),
    ("explain", "big", "-n", "team-a"),
    ("explain", "later", "-n", "team-a"),
    ("explain", "nobody"),
    ("borrowers",),
    ("borrowers", "-n", "team-a"),
)


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    made = Looked(tmp_path_factory.mktemp("kubectl"))
    yield made
    made.close()


@pytest.fixture
def refuses(looked):
    """Refuse what `told` names, as an API server does."""
    kinds: list[str] = []

    def answer(method, path, _):
        found = next((kind for kind in kinds if f"/{kind}" in path), None)
        message = f'{found} is forbidden: User "jane" cannot list resource "{found}"'
        return (403, {"kind": "Status", "message": message}) if found else None

    looked.api.refuses = answer
    yield kinds
    looked.api.refuses = lambda *_: None


def test_what_it_shows_is_as_before(looked, monkeypatch):
    monkeypatch.setattr(output, "age", lambda created: "12m")  # the pods of this stage get older every day
    told = ""
    for words in COMMANDS:
        code, text = looked.shown(*words)
        told += f"$ kubectl gpushare {' '.join(words)}\n{text}\n(exit status {code})\n\n"
    if os.environ.get("GPUSHARE_TEST_UPDATE"):
        GOLDEN.write_text(told)
    before = GOLDEN.read_text().splitlines()
    changes = difflib.unified_diff(before, told.splitlines(), "kubectl.txt", "now", lineterm="")
    assert not list(changes)


def test_programs_read_it_as_json(looked):
    code, text = looked.shown("borrowers", "-o", "json")
    (loan,) = json.loads(text)["loans"]
    assert (code, loan["who"], loan["loan"]) == (0, "team-a/train", 6 * GIB)
    assert loan["idle_there"] == [{"who": "team-a/eval", "idle": 30 * GIB}, {"who": "", "idle": 16 * GIB}]
    _, text = looked.shown("queue", "-A", "--json")
    assert {one["name"]: one["state"] for one in json.loads(text)["pods"]} == {
        "train": "running",
        "eval": "running",
        "big": "waiting",
        "later": "held",
    }
    _, text = looked.shown("queues", "--json")
    assert [one["name"] for one in json.loads(text)["queues"]] == ["research", "speech", "vision", "wrong"]


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("queues", ("queues",), "you may not list queues.gpushare.dev"),
        ("pods", ("queue", "-n", "team-a"), "you may not list pods in the namespace team-a"),
        ("pods", ("queue", "-A"), "you may not list pods in all namespaces"),
        ("pods", ("explain", "team-a/train"), "you may not get pods in the namespace team-a"),
        ("resourceclaims", ("borrowers",), "you may not list resourceclaims.resource.k8s.io in all namespaces"),
    ],
)
def test_a_right_that_is_missing_is_named_in_one_line(looked, refuses, kind, words, said):
    refuses.append(kind)
    code, text = looked.shown(*words)
    assert (code, text.splitlines()[0]) == (4, f"gpushare: {said}")
    assert "kubectl auth can-i" in text


def test_without_rights_to_a_part_the_rest_is_shown(looked, refuses):
    refuses += ["queues", "resourceclaims", "resourceslices"]
    code, text = looked.shown("explain", "team-a/train")
    assert code == 0 and "is running on n1" in text
    assert "you may not get queues.gpushare.dev" in text and "you may not get resourceclaims" in text
    refuses.remove("resourceclaims")
    code, text = looked.shown("borrowers")
    assert code == 0 and "gpu-n1-0" in text and "you may not list resourceslices" in text


def test_what_is_not_served_and_who_is_not_known(looked):
    looked.api.refuses = lambda _, path, __: (404, {"message": "not found"}) if "/queues" in path else None
    code, text = looked.shown("queues")
    assert code == 2 and "keeps no queues" in text
    looked.api.refuses = lambda *_: (401, {"message": "Unauthorized"})
    code, text = looked.shown("queues")
    looked.api.refuses = lambda *_: None
    assert code == 4 and "does not know who you are" in text


def test_the_role_for_users_is_enough(looked):
    """With rights to pods and claims, which `view` has."""
    looked.api.requests.clear()
    for words in COMMANDS:
        looked.shown(*words)
    watches = [one for one in looked.api.requests if one[0] == "GET" and "/leases" not in one[1]]
    asked = {resource(path) for method, path in watches if verb_of(method, path) in ("get", "list")}
    (role,) = yaml.safe_load_all((DEPLOY / "users.yaml").read_text())
    granted = {what for rule in role["rules"] for what in rule["resources"]}
    assert asked - {"pods", "resourceclaims"} == granted
    assert not [one for one in looked.api.requests if one[0] not in ("GET", "WATCH")], "it only reads"


# ---- who asks ------------------------------------------------------------------------------------------


def written(path: Path, **said) -> Path:
    path.write_text(json.dumps(said))
    return path


def config(server: str, **user) -> dict:
    return {
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "lab"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }


def test_several_kubeconfigs_are_one(tmp_path, monkeypatch):
    first = written(tmp_path / "first", **{"current-context": "x"})
    second = written(tmp_path / "second", **config("http://a", token="t"), **{"current-context": "y"})
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'none'}:{second}")
    found = own_access(None, None)
    assert (found.url, found.token(), found.namespace) == ("http://a", "t", "lab")
    assert kubeconfigs({"HOME": str(tmp_path)}) == []
    with pytest.raises(UsageError, match="no context 'z'"):
        own_access(None, "z")
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="no kubeconfig"):
        own_access(None, None)


def exec_user(*words: str, version: str = "client.authentication.k8s.io/v1") -> dict:
    env = [{"name": "WHO", "value": "jane"}]
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": ["-c", *words], "env": env}}


def test_a_program_logs_its_user_in(tmp_path):
    script = (
        "import json, os; asked = json.loads(os.environ['KUBERNETES_EXEC_INFO']);"
        "print(json.dumps({'kind': asked['kind'], 'status': {'token': os.environ['WHO']}}))"
    )
    path = written(tmp_path / "config", **config("http://a", **exec_user(script)), **{"current-context": "x"})
    assert Access.of_kubeconfigs([path]).token() == "jane"
    with pytest.raises(UsageError, match="runs a program to log in"):
        Access.of_kubeconfig(path)  # a service does not


@pytest.mark.parametrize(
    ("user", "said"),
    [
        (exec_user("import sys; sys.exit('no ticket')"), "has failed: no ticket"),
        (exec_user("print('hello')"), "does not"),
        (exec_user("print('{}')"), "does not"),
        (exec_user("print('{\"status\": 3}')"), "does not"),
        (exec_user("", version="v1alpha1"), "speaks 'v1alpha1'"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-program"}}, "no-such-program"),
        ({"exec": "words"}, "does not"),
    ],
)
def test_a_program_that_does_not_log_in_is_said(tmp_path, user, said):
    path = written(tmp_path / "config", **config("http://a", **user), **{"current-context": "x"})
    with pytest.raises(GpushareError, match=said):
        Access.of_kubeconfigs([path])


# ---- odd objects ---------------------------------------------------------------------------------------


def odd(one, chance: random.Random):
    """The same with something else in places."""
    if chance.random() < 0.08:
        return chance.choice([None, 7, -1.5, "", "x", [], {}, [None], {"a": 1}, True, "\x1b[2J"])
    if isinstance(one, dict):
        return {key: odd(value, chance) for key, value in one.items() if chance.random() > 0.03}
    return [odd(value, chance) for value in one] if isinstance(one, list) else one


@pytest.mark.parametrize("seed", range(60))
def test_no_object_is_too_odd(looked, seed):
    chance = random.Random(seed)
    kept = {path: one for path, one in looked.api.objects.items()}
    found = [odd(one, chance) for one in kept.values()]
    things = [one for one in found if isinstance(one, dict)]
    claims = {("team-a", str(number)): one for number, one in enumerate(things)}
    list(views.queues(things))
    assert all(views.pod(one, claims).state for one in things)
    list(views.loans(list(views.uses(things)), views.devices(things)))


def test_queues_in_a_circle_are_shown_once():
    circle = [{"metadata": {"name": a}, "spec": {"parent": b}} for a, b in (("a", "b"), ("b", "a"), ("c", "c"))]
    assert sorted(one.name for one in views.queues(circle)) == ["a", "b", "c"]
