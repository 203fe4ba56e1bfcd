"""gpushare cluster, as a stranger uses it: a file, a few jobs, the plan, why, what if; and what is said to mistakes."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import time
from pathlib import Path

import pytest

from gpushare.cli import main
from gpushare.cluster.model import Job, JobEnded, JobSubmitted, Tasks
from gpushare.cluster.store import Store
from gpushare.quantity import format_bytes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "cluster"
CLUSTER = """
nodes:
  - {name: "n{}", count: 2, gpus: 4, memory: 80Gi, type: H100, labels: {rack: r1}}
queues:
  - name: lab
    quota: 8
    queues:
      - {name: a, quota: 5}
      - {name: b, quota: 3, priority: 1}
"""


class Shell:
    """`gpushare cluster ...` in one process, with a store of its own."""

    def __init__(self, directory: Path, capsys) -> None:
        self.directory, self.capsys = directory, capsys
        self.out = self.err = ""

    def __call__(self, line: str, *, code: int = 0, **names: object) -> str:
        words = shlex.split(line.format(dir=self.directory, **names))
        found = main(["cluster", *words])
        self.out, self.err = self.capsys.readouterr()
        assert found == code, f"{line}: {found}\n{self.out}\n{self.err}"
        return self.out

    def json(self, line: str, **names: object) -> dict:
        return json.loads(self(f"{line} -o json", **names))

    def refused(self, line: str, *, code: int = 2) -> str:
        self(line, code=code)
        assert self.out == ""
        return self.err


@pytest.fixture
def sh(tmp_path, monkeypatch, capsys) -> Shell:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return Shell(tmp_path, capsys)


@pytest.fixture
def cluster(sh) -> Shell:
    sh("apply {dir}/cluster.yaml")
    return sh


def states(sh: Shell) -> dict[str, str]:
    return {view["job"]["id"]: view["state"] for view in sh.json("jobs")["jobs"]}


# ---- the way of a stranger ----------------------------------------------------------------------------


def test_from_a_file_to_an_answer(sh) -> None:
    out = sh("apply {dir}/cluster.yaml")
    assert "2 nodes, 3 new queues, 0 changed queues" in out
    assert str(sh.directory / "state" / "gpushare" / "cluster.db") in out
    assert "start" in sh("submit --queue a --gpus 4 --name first")
    sh("submit -q a --gpus 3 --name second")
    sh("submit -q b --gpus 0.5 --tasks 2 --name halves")
    out = sh("submit -q a --gpus 4 --name third")
    assert out.startswith("wait")
    assert states(sh) == {"first": "running", "second": "running", "halves": "running", "third": "pending"}
    plan = sh("plan")
    assert plan.splitlines()[0] == "8 of 8 GPUs held; 1 pending, 3 running"
    assert "third" in plan
    why = sh("explain third")
    assert why.startswith("job third of queue a has waited")
    assert "because" in why
    assert "start" in sh("plan --what-if 'end: first'")
    assert states(sh)["first"] == "running", "what if changes nothing"
    assert "third" in sh("end first")
    assert states(sh) == {"second": "running", "halves": "running", "third": "running"}
    sh("cancel third halves")
    assert states(sh) == {"second": "running"}


def test_the_cluster_of_the_examples(sh) -> None:
    assert "3 nodes, 5 new queues" in sh("apply {path}", path=EXAMPLES / "cluster.yaml")
    sh("submit -q students --gpus 4 --name ours")
    sh("submit -q students --gpus 1 --name more")
    assert "limit" in sh("explain more")
    assert states(sh) == {"ours": "running", "more": "pending"}


def test_a_queue_takes_back_its_quota_and_says_from_whom(cluster) -> None:
    for n in range(8):
        cluster(f"submit -q a --gpus 1 --name a-{n}")
    assert "a borrows 3" in cluster("queues -o wide")
    out = cluster("submit -q b --gpus 2 --name mine")
    verbs = [line.split()[0] for line in out.splitlines()]
    assert verbs.count("evict") == 2
    assert "start" in verbs
    held = {view["queue"]["name"]: view["allocated"] for view in cluster.json("queues")["queues"]}
    assert held == {"lab": 8_000_000, "a": 6_000_000, "b": 2_000_000}


def test_apply_again_changes_what_the_file_changes(cluster) -> None:
    assert "is as" in cluster("apply {dir}/cluster.yaml")
    (cluster.directory / "cluster.yaml").write_text(CLUSTER.replace("quota: 5", "quota: 4") + "  - {name: new}\n")
    assert "0 nodes, 1 new queue, 1 changed queue" in cluster("apply {dir}/cluster.yaml")
    assert "new" in cluster("queues")


def test_dry_run_submits_nothing(cluster) -> None:
    assert "start" in cluster("submit -q a --gpus 2 --dry-run")
    assert cluster.json("jobs") == {"schema": "gpushare.cluster.jobs/1", "jobs": []}


def test_jobs_from_a_file(cluster) -> None:
    (cluster.directory / "jobs.yaml").write_text("jobs:\n  - {name: 'j-{}', count: 3, queue: a, gpus: 1}\n")
    answer = cluster.json("submit {dir}/jobs.yaml")
    assert answer["jobs"] == ["j-1", "j-2", "j-3"]
    assert [action["action"] for action in answer["actions"]] == ["start"] * 3
    assert "both a file and --gpus" in cluster.refused("submit {dir}/jobs.yaml --gpus 1")


def test_every_word_of_a_job(cluster) -> None:
    line = "submit -q a --name j --memory 20Gi --limit 40Gi --gpus 2 --tasks 2 --min 1 --priority 7 --min-runtime 5m"
    own = "--movable --checkpoint-every 10m"
    cluster(f"{line} --not-preemptible --type H100 --node n1 --label rack=r1 --pool default --no-backfill {own}")
    (view,) = cluster.json("jobs")["jobs"]
    job = view["job"]
    assert (job["priority"], job["preemptible"], job["min_runtime"], job["backfill"]) == (7, False, 300, False)
    assert (job["movable"], job["checkpoint_every"]) == (True, 600)
    assert job["selector"] == {"pools": ["default"], "types": ["H100"], "labels": [["rack", "r1"]], "nodes": ["n1"]}
    tasks = job["tasks"][0]
    assert (tasks["least"], tasks["most"], tasks["gpus"]) == (1, 2, 2)
    assert (tasks["memory"], tasks["limit"]) == (20 * 2**30, 40 * 2**30)
    assert {place["node"] for place in view["places"]} == {"n1"}
    cluster("submit -q b --name ladder --ladder 1.0,0.7,0.4")
    assert cluster.json("jobs --queue b")["jobs"][0]["job"]["tasks"][0]["ladder"] == [700_000, 400_000]


def test_no_wait_is_refused_with_the_time_to_come_again(cluster) -> None:
    cluster("submit -q a --gpus 4 --tasks 2 --name all")
    cluster("submit -q a --gpus 1 --name now --no-wait", code=1)
    assert "now was refused" in cluster.err
    assert "try again in 3 s" in cluster.err
    assert list(states(cluster)) == ["all"]


def test_a_job_that_no_node_could_hold_is_told_so_at_once_and_waits(cluster) -> None:
    out = cluster("submit -q a --gpus 8 --name wide")
    what = "no node that is there can hold it: 8 GPUs needed, the largest that matches: n1 with 4 GPUs"
    assert out.startswith("wait")
    assert what in out
    assert what in cluster("explain wide")
    cluster("submit -q a --memory 100Gi --name now --no-wait", code=1)
    assert "the largest that matches: n1 with 4 GPUs of 80.0 GiB" in cluster.err
    assert "ask for less, or for other nodes, or leave --no-wait out: then it is queued" in cluster.err
    assert "start" in cluster("change 'node: {{name: big, gpus: 8}}'")
    assert states(cluster) == {"wide": "running"}
    assert "not between" in cluster.refused("submit -q a --gpus 2000")


@pytest.mark.parametrize("view", ["queues", "nodes", "jobs", "plan", "explain j"])
def test_every_view_is_json_too(cluster, view: str) -> None:
    cluster("submit -q a --name j")
    answer = cluster.json(view)
    assert answer["schema"].startswith("gpushare.cluster.")
    assert cluster(view)


def test_nodes_show_the_gpus_that_are_whole_and_the_largest_part(cluster) -> None:
    def row(name: str) -> list[str]:
        (line,) = (line for line in cluster("nodes").splitlines() if line.split()[:1] == [name])
        return line.split()[3:]

    assert row("n1") == row("n2") == ["4", "80.0", "GiB", "4", "0", "ok"]
    cluster("submit -q a --gpus 3 --node n1 --name three")
    assert row("n1") == ["4", "80.0", "GiB", "1", "0", "ok"]
    cluster("submit -q a --gpus 0.25 --node n1 --name quarter")
    assert row("n1") == ["4", "80.0", "GiB", "0", "0.75", "ok"]


@pytest.mark.parametrize(
    ("line", "said", "node"),
    [
        ("cordon n1 n2", "cordoned n1, n2", "cordoned"),
        ("uncordon n1", "open again: n1", "ok"),
        ("drain n2", "drained n2", "cordoned"),
    ],
)
def test_a_word_to_a_node_says_what_was_done(cluster, line: str, said: str, node: str) -> None:
    assert said in cluster(line)
    name = line.rsplit(maxsplit=1)[-1]
    assert any(row.split()[:1] == [name] and row.endswith(node) for row in cluster("nodes").splitlines())


def test_a_word_to_a_job_says_what_was_done(cluster) -> None:
    cluster("submit -q a --gpus 4 --node n1 --name first")
    cluster("submit -q a --gpus 4 --node n1 --name second")
    assert cluster("hold second").startswith("held second\n")
    assert states(cluster) == {"first": "running", "second": "pending"}
    assert "held: by its user" in cluster("explain second")
    assert cluster("release second").startswith("released second\n")
    assert "held" not in cluster("explain second")


def test_what_if_as_json(cluster) -> None:
    answer = cluster.json("plan --what-if 'submit: {{name: x, queue: a, gpus: 2}}' --what-if 'lose: n1'")
    assert answer["allocated"]["a"] == {"now": 0, "then": 2_000_000}
    assert "x" in answer["running"]


def test_what_if_says_which_shares_would_be_others(cluster) -> None:
    change = "plan --what-if 'queue: {{name: a, quota: 1}}'"
    assert cluster(change) == "no job would start, move or stop, and no share would change\n"
    cluster("submit -q a --name x --gpus 4 --min-runtime 1h")
    cluster("submit -q b --name y --gpus 4 --tasks 2")
    assert cluster(change) == (
        "no job would start, move or stop\nthe share of a would be 1 GPU instead of 4\n"
        "the share of b would be 7 GPUs instead of 4\n"
    )
    assert cluster.json(change)["shares"] == {"lab": 8_000_000, "a": 1_000_000, "b": 7_000_000}


def test_a_change_does_what_what_if_shows(cluster) -> None:
    cluster("submit -q a --gpus 4 --tasks 2 --name wide")
    shown = cluster("plan --what-if 'lose: n1'").splitlines()
    done = cluster("change 'lose: n1'").splitlines()
    assert done == shown[: len(done)]
    assert "lost" in cluster("nodes")
    assert states(cluster) == {"wide": "pending"}
    assert "start" in cluster("change 'node: {{name: n1, gpus: 4, memory: 80Gi, type: H100}}'")
    assert "no job starts, moves or stops" in cluster(
        "change 'queue: {{name: c, quota: 1}}' 'queue: {{name: a, quota: 4}}'"
    )
    cluster("change 'remove: c'")
    assert [view["queue"]["name"] for view in cluster.json("queues")["queues"]] == ["lab", "a", "b"]
    assert "a" in cluster.refused("change 'remove: a'")


# ---- mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("submit --gpus 1", 2, "name a queue with --queue: a, b"),
        ("submit -q none", 2, "none"),
        ("submit -q lab", 2, "lab"),
        ("submit -q a --gpus lots", 2, "--gpus: cannot read 'lots' as a number of GPUs"),
        ("submit -q a --gpus 1.5", 2, "a share of 0.75"),
        ("submit -q a --gpus 0.5 --limit 0.2", 2, "limit"),
        ("submit -q a --memory 4096", 2, "4096Mi"),
        ("submit -q a --share 0.5 --memory 4Gi", 2, "share"),
        ("submit -q a --label rack", 2, "KEY=VALUE"),
        ("submit -q a --quota 3", 2, "no such option"),
        ("explain nobody", 5, "`gpushare cluster jobs` lists them"),
        ("end nobody", 5, "no job 'nobody'"),
        ("cancel", 2, "missing argument"),
        ("jobs --queue none", 2, "there are: lab, a, b"),
        ("submit -q a --gpus 0.5 --limit 0.2", 2, "tasks[0].limit: 0.2 is below the request of 0.5"),
        ("submit -q a --memory 40Gi --limit 20Gi", 2, "20.0 GiB is below the request of 40.0 GiB"),
        ("submit -q a --ladder 0.4,0.7", 2, "0.7 does not come after 0.4"),
        ("submit -q a --min-runtime soon", 2, "--min-runtime: cannot read 'soon'"),
        ("submit -q a --tasks 4 --min 5", 2, "--min: 5 is out of range"),
        ("submit -q a --label 'a b'", 2, "KEY=VALUE"),
        ("plan --what-if 'queue: {{name: a, parent: b}}'", 2, "queue a is below lab, not below b"),
        ("simulate {dir}/cluster.yaml", 2, "is a cluster, not a scenario"),
        ("simulate {dir}/x.csv --most few", 2, "'few' is not a whole number"),
        ("queue", 2, "did you mean `gpushare cluster queues`?"),
        ("plan --what-if 'break it'", 2, "is not a change"),
        ("change 'break it'", 2, "is not a change"),
        ("change 'lose: n9'", 2, "n9"),
        ("plan --what-if 'loose: n1'", 2, "did you mean lose?"),
        ("plan --what-if 'lose: n9'", 2, "there are: n1, n2"),
        ("plan --what-if 'wait: 3s'", 2, "unknown key 'wait'"),
        ("apply {dir}/none.yaml", 2, "No such file"),
        ("simulate {dir}/none.yaml", 2, "No such file"),
        ("simulate {dir}/x.csv", 2, "--cluster FILE"),
        ("queues --store {dir}/none.db", 1, "gpushare cluster apply FILE"),
    ],
)
def test_mistakes_get_the_way_out_and_change_nothing(cluster, line: str, code: int, words: str) -> None:
    before = cluster.json("plan")
    err = cluster.refused(line, code=code)
    assert err.startswith("gpushare: ")
    assert "hint: " in err
    assert words in err
    assert cluster.json("plan") == before


def test_without_a_cluster_the_first_step_is_said(sh) -> None:
    for line in ("queues", "nodes", "jobs", "plan", "submit -q a", "explain j", "end j"):
        assert "gpushare cluster apply FILE" in sh.refused(line, code=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: [{name: n, gpus: 2}, {name: n, gpus: 2}]", "nodes: n stands twice"),
        ("queues: [{name: q, quota: 3, limit: 1}]", "bad.yaml: queue q: limit: 1 is below the quota of 3"),
        ("nodes: [{name: n, gpus: 2, memory: 0Gi}]", "write at least 1Mi"),
        ("queues: [{name: q, parent: none}]", "none"),
        ("queues: [{name: q, quotta: 3}]", "did you mean quota?"),
        ("nodes: [{name: n, gpus: 2, memory: 80}]", "write 80Gi"),
        ("policy: {reserve: 3s}", "did you mean reserve_after?"),
        ("jobs: [{name: j, queue: q, on: n}]", "has no jobs"),
        ("nodes: [{name: n, count: 2, gpus: 2}]", "{} becomes the number"),
        ("nodes: [{name: n, gpus: 2000}]", "1024"),
    ],
)
def test_a_bad_cluster_file_makes_no_cluster(sh, text: str, words: str) -> None:
    (sh.directory / "bad.yaml").write_text(text)
    err = sh.refused("apply {dir}/bad.yaml")
    assert words in err
    assert "hint: " in err
    assert not (sh.directory / "state" / "gpushare" / "cluster.db").exists()


def test_promises_that_cannot_all_be_kept_are_named(sh) -> None:
    below = "[{name: b, quota: 7}]"
    text = f"nodes: [{{name: n, gpus: 8}}]\nqueues: [{{name: a, quota: 6, queues: {below}}}, {{name: c, quota: 3}}]\n"
    (sh.directory / "much.yaml").write_text(text)
    sh("apply {dir}/much.yaml")
    assert sh.err.splitlines() == [
        "gpushare: the quotas of the top queues add up to 9 GPUs, and there are 8 GPUs: if all ask, each gets less",
        "gpushare: the quotas of the queues below a add up to 7 GPUs, and the quota of a is 6 GPUs:"
        " if all ask, each gets less",
    ]
    sh("apply {dir}/cluster.yaml --store {dir}/fine.db")
    assert sh.err == ""


def test_on_a_narrow_terminal_the_reason_stays_and_goes_on_below() -> None:
    from gpushare.cli import cluster_views, output

    lines = output.table(
        cluster_views.JOBS,
        [["train", "vision", "pending", "50", "9", "-", "4m", "no node that is there can hold it: 9 GPUs needed"]],
        60,
    )
    assert "PRIORITY" not in lines[0]
    assert "…" not in "".join(lines)
    assert lines[-1].strip() == "GPUs needed"


def test_a_policy_is_for_ever(cluster) -> None:
    (cluster.directory / "other.yaml").write_text("policy: {grow_hold: 3s}\n")
    assert "made with another" in cluster.refused("apply {dir}/other.yaml")


def test_a_name_that_nobody_chose_is_never_taken(cluster, monkeypatch) -> None:
    """Another gpushare may have submitted under it in between."""
    from gpushare.cli import cluster_submit as commands

    cluster("submit -q a --name a-1")
    names = iter(["a-1", "a-1", "a-9"])
    monkeypatch.setattr(commands, "_new_name", lambda *_: next(names))
    assert "a-9" in cluster("submit -q a")
    assert "there is one of this name" in cluster.refused("submit -q a --name a-1")


def test_a_change_of_queues_within_a_queue_changes_what_it_says_and_nothing_else(cluster) -> None:
    cluster("change 'queue: {{name: lab, quota: 9, queues: [{{name: a, limit: 6}}, {{name: c, quota: 1}}]}}'")
    queues = {view["queue"]["name"]: view["queue"] for view in cluster.json("queues")["queues"]}
    assert queues["lab"]["quota"] == 9_000_000
    assert (queues["a"]["quota"], queues["a"]["limit"]) == (5_000_000, 6_000_000)
    assert queues["b"]["priority"] == 1
    assert queues["c"]["parent"] == "lab"


def test_why_it_waits_who_is_in_the_way_and_what_would_help(cluster) -> None:
    for n in range(2):
        cluster(f"submit -q b --gpus 4 --name b-{n}")
    cluster("submit -q b --gpus 4 --name late")
    out = cluster("explain late")
    assert "asks for    4 GPUs" in out
    assert "in the way  with it b would hold 12 GPUs; its share is 8, its quota 3: it may not take from others" in out
    assert "no preemptible job of lower priority runs in b" in out
    assert "hint: give the job priority 51 instead of 50\n  or: " in out


def test_output_that_cannot_be_written_is_said(cluster, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gpushare.cli.cluster_views.print_queues", full)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    assert "cannot write: No space left on device" in cluster.refused("queues", code=1)


# ---- simulations --------------------------------------------------------------------------------------


def test_a_scenario_is_told_step_by_step(sh) -> None:
    out = sh("simulate {path}", path=EXAMPLES / "a8-quick-start.yaml")
    assert out.startswith("Run:ai's quick start")
    assert "evict" in out
    assert "team-a  2" in out
    assert "1 eviction" in out
    with_time = sh("simulate {path}", path=EXAMPLES / "a6-ladder.yaml")
    assert "idle  |" in with_time
    assert "of the GPU time used" in with_time


def test_a_scenario_that_goes_otherwise_fails(sh) -> None:
    text = (EXAMPLES / "a8-quick-start.yaml").read_text().replace("evicted: [a1]", "evicted: [a2]")
    (sh.directory / "wrong.yaml").write_text(text)
    sh("simulate {dir}/wrong.yaml", code=1)
    assert "1 expectation of " in sh.err and "did not come true" in sh.err
    assert "wrong.yaml:20" in sh.err
    assert "evicted: a1 (a1 too; not a2)" in sh.err


def test_a_scenario_as_json(sh) -> None:
    answer = sh.json("simulate {path}", path=EXAMPLES / "a8-quick-start.yaml")
    assert answer["summary"]["evicted"] == 1
    assert answer["failures"] == []
    assert {name: track[-1][1] for name, track in answer["held"].items()} == {"team-a": 2_000_000, "team-b": 2_000_000}


def test_jobs_of_a_trace_that_make_no_sense_are_counted(sh) -> None:
    (sh.directory / "t.jsonl").write_text('{"at": "1s", "name": "a", "queue": "none", "duration": "3s"}\n')
    out = sh("simulate {dir}/t.jsonl --cluster {dir}/cluster.yaml")
    assert "refuse    a  job a: queue: no queue 'none'" in out
    assert "1 refusal" in out


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_trace(sh, kind: str) -> None:
    jobs = [{"at": f"{n}s", "name": f"j{n}", "queue": "ab"[n % 2], "gpus": "2", "duration": "10s"} for n in range(12)]
    lines = [json.dumps(job) for job in jobs]
    if kind == "csv":
        lines = [",".join(jobs[0]), *(",".join(job.values()) for job in jobs)]
    (sh.directory / f"t.{kind}").write_text("\n".join(lines) + "\n")
    out = sh(f"simulate {{dir}}/t.{kind} --cluster {{dir}}/cluster.yaml --most 5")
    assert "... and" in out
    assert "0 jobs left waiting" in out
    answer = sh.json(f"simulate {{dir}}/t.{kind} --cluster {{dir}}/cluster.yaml")
    assert answer["summary"]["started"] == 12
    assert answer["summary"]["waiting"] == 0


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "at,name,queue\n0,j,a,3\n", "t.csv:2: 4 values for 3 columns"),
        ("t.csv", "name,queue,gpuss\nj,a,1\n", "did you mean gpus?"),
        ("t.jsonl", '{"name": "j"}\n', "t.jsonl:1: queue is missing"),
        ("t.jsonl", '{"name": "j", "queue": "a"}\n{"name"\n', "t.jsonl:2: not JSON"),
        ("t.jsonl", "\n", "has no jobs"),
    ],
)
def test_a_bad_trace_is_named_by_line(sh, name: str, text: str, words: str) -> None:
    (sh.directory / name).write_text(text)
    err = sh.refused(f"simulate {{dir}}/{name} --cluster {{dir}}/cluster.yaml")
    assert words in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps: []", "given is missing"),
        ("given: {}\nsteps: [{then: {helt: {a: 1}}}]", "did you mean held?"),
        ("given: {}\nsteps: [{when: [{sumbit: {}}]}]", "did you mean submit?"),
        ("given: {}\nsteps: [{when: [{wait: 1s, end: j}]}]", "2 actions in one entry"),
        ("given: {}\nsteps: [{when: [{wait: soon}]}]", "cannot read 'soon'"),
        ("given: {}\nsteps: [{when: [{lose: n}]}]", "n"),
        ("given: {queues: [{name: a}]}\nsteps: [{then: {held: {b: 1}}}]", "no b here"),
        ("given: {queues: [{name: a}], jobs: [{name: j, queue: a, on: n}]}", "given.jobs[0].on: no node n"),
    ],
)
def test_a_bad_scenario_is_named_by_line(sh, text: str, words: str) -> None:
    (sh.directory / "bad.yaml").write_text(text)
    sh("simulate {dir}/bad.yaml", code=2)
    assert words in sh.err
    assert "bad.yaml" in sh.err
    assert "hint: " in sh.err


def test_a_plot(sh) -> None:
    pytest.importorskip("matplotlib")
    out = sh("simulate {path} --plot {dir}/p.svg", path=EXAMPLES / "a8-quick-start.yaml")
    assert "drawn to" in out
    assert "team-a" in (sh.directory / "p.svg").read_text()
    assert "PNG or SVG" in sh.refused("simulate {dir}/cluster.yaml --plot {dir}/p.gif")


def test_a_compacted_file_shows_what_it_showed(cluster) -> None:
    cluster("submit --queue a --gpus 4 --name first")
    cluster("submit --queue a --gpus 4 --name second")
    cluster("submit --queue b --gpus 3 --name third")
    cluster("end first")

    def shown() -> list[str]:
        """Without the seconds, which pass."""
        return [re.sub(r"\b\d+ ?s\b", "some s", cluster(line)) for line in ("plan", "queues", "nodes", "explain third")]

    before = shown()
    assert "past decisions forgotten" in cluster("compact")
    assert shown() == before
    assert "start" in cluster("submit --queue a --gpus 1 --name fourth")
    assert "0 past decisions forgotten" not in cluster("compact")
    assert "0 past decisions forgotten" in cluster("compact")
    cluster.refused("compact --store {dir}/none.db", code=1)


def test_a_compacted_file_is_smaller(cluster) -> None:
    path = cluster.directory / "state" / "gpushare" / "cluster.db"
    names = [f"{'long-' * 40}{number}" for number in range(300)]
    with Store.open(path) as store:
        store.append([JobSubmitted(Job(name, "a", (Tasks(gpus=1),))) for name in names], time.time())
        store.append([JobEnded(name) for name in names], time.time())
    before = path.stat().st_size
    said = cluster("compact")
    assert path.stat().st_size < before / 2
    assert f"{path} has {format_bytes(path.stat().st_size)}" in said
