"""Nodes that are made of what the node daemon shows, and submissions as they are read."""

from __future__ import annotations

import os
import resource

import pytest

from gpushare.cluster.engines.local import keeper, submission
from gpushare.cluster.engines.local.gpus import Daemon, Look, nodes_of, seen
from gpushare.cluster.engines.seam import SeenNode, Unanswered
from gpushare.errors import DaemonUnreachable, UsageError

GIB = 2**30


def gpu(index: int, name: str = "A100", total: int = 80, *, health: str = "ok", unmanaged: int = 0, capacity=None):
    return {
        "uuid": f"GPU-{index}",
        "index": index,
        "name": name,
        "total": total * GIB,
        "capacity": (total - 1 if capacity is None else capacity) * GIB,
        "unmanaged": unmanaged,
        "health": {"state": health},
    }


def job(id: str, *requests: tuple[int, int]):
    return {"id": id, "gpus": [{"uuid": f"GPU-{index}", "request": amount} for index, amount in requests]}


def test_alike_gpus_are_one_node_with_the_least_that_one_of_them_has() -> None:
    (node,) = nodes_of([gpu(1, capacity=70), gpu(0), gpu(2, health="sick"), gpu(3, health="degraded")], "host")
    assert (node.name, node.gpus, node.memory, node.type) == ("host", 4, 70 * GIB, "A100")
    assert node.uuids == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
    assert node.broken == {2}


def test_other_gpus_are_another_node() -> None:
    nodes = nodes_of([gpu(0), gpu(1, "NVIDIA L4", 24), gpu(2), gpu(3, "A100", 40)], "host")
    shown = [(node.name, node.uuids, node.memory // GIB) for node in nodes]
    assert shown == [
        ("host-a100", ("GPU-0", "GPU-2"), 79),
        ("host-nvidia-l4", ("GPU-1",), 23),
        ("host-a100-40g", ("GPU-3",), 39),
    ]


def test_foreign_is_what_others_have_requested_or_taken_or_reserved() -> None:
    gpus = [gpu(0), gpu(1, unmanaged=5), gpu(2)]
    look = Look(gpus, [job("ours", (0, 100)), job("theirs", (0, 20), (1, 30))], {"GPU-1": 7, "GPU-2": 0})
    nodes = nodes_of(gpus, "host")
    assert list(seen(nodes, look, {"ours"})) == [SeenNode(nodes[0], foreign=((0, 20), (1, 42)))]
    assert next(seen(nodes, look, {"ours", "theirs"})).foreign == ((1, 12),)


class Fake(Daemon):
    def __init__(self, *looks) -> None:
        super().__init__({}, start=False)
        self.looks = list(looks)

    def _ask(self):
        look = self.looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return look


def test_a_daemon_that_does_not_answer_leaves_nodes_of_unknown_state() -> None:
    away = DaemonUnreachable("it is away")
    daemon = Fake(away, away, Look([gpu(0)], [], {}), away, away, away, Look([gpu(0), gpu(1)], [], {}))
    with pytest.raises(Unanswered, match="it is away"):
        daemon.nodes(())
    (ready,) = daemon.nodes(())
    assert ready.state == "ready"
    assert daemon.nodes(()) == [SeenNode(ready.node, "unknown")]
    assert daemon.nodes(())[0].node.gpus == 2, "asked twice: it may have been replaced"
    assert daemon.looks == []


def test_which_gpus_there_are() -> None:
    daemon = Fake(Look([gpu(0), gpu(1)], [], {}))
    (one,) = daemon.nodes(())
    assert daemon.uuids(one.node.name, (1, 0)) == ("GPU-1", "GPU-0")
    assert daemon.uuids(one.node.name, (2,)) is None and daemon.uuids(one.node.name, (-1,)) is None
    assert daemon.uuids("another", (0,)) is None
    assert (daemon.memory(one.node.name), daemon.memory("another")) == (79 * GIB, 0)


# ---- submissions -------------------------------------------------------------------------------------

SOUND = {"command": ["true"], "cwd": "/", "env": {"A": "b"}}


def test_what_a_submission_says_and_what_is_usual() -> None:
    launch = submission.read(SOUND)
    assert (launch.command, launch.cwd, launch.env, launch.umask) == (("true",), "/", {"A": "b"}, 0o022)
    assert (launch.time, launch.grace, launch.output, launch.rlimits) == (None, None, None, {})
    full = {"umask": 0o77, "time": 60, "grace": 0, "output": "/x", "error": None, "rlimits": {"RLIMIT_CORE": [0, -1]}}
    launch = submission.read({**SOUND, **full})
    assert (launch.umask, launch.time, launch.grace, launch.output) == (0o77, 60.0, 0.0, "/x")
    assert launch.rlimits == {"RLIMIT_CORE": (0, -1)}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"command": []}, "there is no command"),
        ({"command": [""]}, "there is no command"),
        ({"command": "true"}, "command must be a list of words"),
        ({"command": ["a\0b"]}, "command must be a text without a zero byte"),
        ({"cwd": "work"}, "cwd must be an absolute path, not 'work'"),
        ({"cwd": None}, "cwd must be a text"),
        ({"env": {"A=B": "c"}}, "env must be an object of variables"),
        ({"env": {"": "c"}}, "env must be an object of variables"),
        ({"env": ["A"]}, "env must be an object of variables"),
        ({"env": {"A": 1}}, "env: A must be a text"),
        ({"output": "x.log"}, "output must be an absolute path"),
        ({"error": "/x"}, "errors go where the output goes"),
        ({"umask": 0o1000}, "umask must be a number from 0 to 511, not 512"),
        ({"umask": "22"}, "umask must be"),
        ({"time": 0.5}, "time must be between 1 s and"),
        ({"time": "8h"}, "time must be a number of seconds, not '8h'"),
        ({"time": float("inf")}, "time must be a number of seconds"),
        ({"grace": -1}, "grace must be between 0 s and"),
        ({"grace": True}, "grace must be a number of seconds"),
        ({"rlimits": []}, "rlimits"),
        ({"rlimits": {"RLIMIT_CPU": [1]}}, "rlimits: RLIMIT_CPU must be two whole numbers"),
        ({"rlimits": {"RLIMIT_CPU": [1, -2]}}, "rlimits: RLIMIT_CPU must be two whole numbers"),
        ({"rlimits": {"CPU": [1, 2]}}, "rlimits: CPU must be two whole numbers"),
        ({"colour": "blue"}, "there is no 'colour'"),
    ],
)
def test_what_makes_no_sense_is_named(changed, words) -> None:
    if changed == {"rlimits": []}:
        assert submission.read({**SOUND, **changed}).rlimits == {}
        return
    with pytest.raises(UsageError) as caught:
        submission.read({**SOUND, **changed})
    assert words in caught.value.message


def test_a_huge_environment_is_refused_with_its_cause_and_the_way_out() -> None:
    most = submission.MOST_TEXT
    submission.check_environment({"A": "x" * (most - 3)})
    with pytest.raises(UsageError, match=r"the variable BIG has 128\.0 KiB") as caught:
        submission.check_environment({"A": "b", "BIG": "x" * (most - 4)})
    assert caught.value.hint == "submit without it: env -u BIG gpushare submit ..."
    many = {f"V{number}": "x" * 100_000 for number in range(100)}
    with pytest.raises(UsageError, match=r"have 9.5 MiB, a job may have 1.0 MiB") as caught:
        submission.check_environment(many)
    assert caught.value.facts == (("largest", "V10, 97.7 KiB"),) or caught.value.facts[0][1].startswith("V")
    assert "env -i" in caught.value.hint
    with pytest.raises(UsageError, match="a word of the command"):
        submission.check_environment({}, ("x" * (most + 1),))
    submission.check_environment({}, ("x" * most,))
    with pytest.raises(UsageError, match="a job may have"):
        submission.check_environment({}, ("x" * most,) * 9)


def test_limits_of_this_process_are_limits_of_a_job() -> None:
    limits = submission.limits_now()
    assert tuple(limits["RLIMIT_NOFILE"]) == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert submission.read({**SOUND, "rlimits": limits}).rlimits["RLIMIT_NOFILE"] == tuple(limits["RLIMIT_NOFILE"])


# ---- parts of the keeper -----------------------------------------------------------------------------


def test_a_log_and_its_older_part_are_bounded(tmp_path) -> None:
    path = tmp_path / "1.log"
    log = keeper.Log(str(path), 1000)
    for number in range(100):
        log.write(f"line {number:4}\n".encode())
    older = path.with_name("1.log.1")
    assert path.stat().st_size <= 500 and older.stat().st_size <= 500
    both = (older.read_text() + path.read_text()).splitlines()
    assert both[-1] == "line   99" and both == [f"line {number:4}" for number in range(100 - len(both), 100)]
    again = keeper.Log(str(path), 1000)
    assert again.size == path.stat().st_size
    again.write(b"more\n")
    assert (older.read_text() + path.read_text()).endswith("line   99\nmore\n")


def test_a_full_disk_costs_output_and_not_the_program(tmp_path, monkeypatch) -> None:
    log = keeper.Log(str(tmp_path / "1.log"), 1000)
    with monkeypatch.context() as patch:
        patch.setattr(keeper.os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        log.write(b"lost")
    log.write(b"kept")
    assert (log.lost, (tmp_path / "1.log").read_bytes()) == (4, b"kept")


def test_limits_are_lowered_and_never_raised_beyond_what_may_be() -> None:
    assert [keeper.least_of(*pair) for pair in ((-1, 5), (5, -1), (3, 5), (-1, -1))] == [5, 5, 3, -1]


def test_descendants_are_found_however_deep() -> None:
    everything = {pid: keeper.Process(pid, 0, parent, 1) for pid, parent in ((2, 1), (3, 2), (4, 3), (5, 1), (6, 9))}
    assert keeper.below({2}, everything) == {3, 4}
    assert keeper.below({1, 9}, everything) == {2, 3, 4, 5, 6}
    me = keeper.process(os.getpid())
    assert me is not None and me.parent == os.getppid() and me.session == os.getsid(0)
    assert keeper.process(2**22 + 1) is None


def test_without_a_record_of_the_program_no_other_process_belongs_to_the_task(tmp_path, monkeypatch) -> None:
    """Processes whose session began outside the container all show session 0: others have started them."""
    monkeypatch.chdir(tmp_path)
    me = os.getpid()
    table = {
        pid: keeper.Process(pid, 5, parent, session) for pid, parent, session in ((me, 1, 0), (7, 1, 0), (8, 1, 9))
    }
    table[9] = keeper.Process(9, 5, me, 0)
    monkeypatch.setattr(keeper, "processes", lambda: table)
    one = keeper.Keeper({"mark": "the task's"})
    try:
        assert [found.pid for found in one._processes()] == [9], "its own child"
        one.main = keeper.Process(9, 5, me, 0)
        assert [found.pid for found in one._processes()] == [8], "the session that the program began"
        (tmp_path / "running.json").write_text('{"pid": 9, "start": 5, "since": 0}')
        table |= {10: keeper.Process(10, 6, 1, 9), 11: keeper.Process(11, 4, 1, 9)}  # the second is older than it
        assert [found.pid for found in one._processes()] == [8, 10], "as an earlier keeper has noted it"
    finally:
        os.close(one.wake_read), os.close(one.wake_write)


def test_a_signal_is_never_for_a_later_process_with_the_same_number() -> None:
    pid = os.fork()
    if pid == 0:
        while True:
            os.read(os.pipe()[0], 1)
    try:
        found = keeper.process(pid)
        keeper.send(found._replace(start=found.start - 1), 9)
        assert keeper.process(pid) == found
        keeper.send(found, 9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    except BaseException:
        os.kill(pid, 9)
        raise
