"""The shim and a daemon: credit, waiting, refusals, and daemons that go and come back."""

from __future__ import annotations

import threading
import time

import fake_daemon as wire
import pytest
from fake_daemon import FakeDaemon

GIB, MIB = 2**30, 2**20
LIMIT = {"GPUSHARE_LIMIT": "8Gi", "GPUSHARE_REQUEST": "4Gi", "GPUSHARE_NAME": "train", "GPUSHARE_PRIORITY": "-3"}


def finish(child):
    out, err = child.communicate(timeout=20)
    assert child.returncode == 0, err
    return out, err


def tell(child, text="go"):
    child.stdin.write(text + "\n")
    child.stdin.flush()


def test_nothing_happens_before_the_first_context(host, daemon):
    child = host.start(
        "cuda = Cuda(); cuda.cuInit(0); cuda.total(); Nvml().memory(); say(1); hear(); cuda.start(); say(2); hear()",
        **LIMIT,
    )
    assert child.stdout.readline() == "1\n"
    assert daemon.hellos == []
    tell(child)
    assert child.stdout.readline() == "2\n"
    assert len(daemon.hellos) == 1
    tell(child)
    finish(child)


def test_hello_says_who_and_what(host, daemon):
    host.python("Cuda().start()", GPUSHARE_JOB="00000000000000ab", GPUSHARE_GRACE="1.5s", **LIMIT)
    (hello,) = daemon.hellos
    job, page, flags, pid, request, ownkind, _, limit, limit_kind, _, priority, grace, name, *steps = hello
    assert (job, page, flags) == (0xAB, 0, 0) and pid > 1
    assert (request, ownkind, limit, limit_kind) == (4 * GIB, 1, 8 * GIB, 1)
    assert (priority, grace, name.rstrip(b"\0")) == (-3, 1500, b"train")
    assert steps == [0, 0], "the daemon's own, for want of a choice"


def test_credit_is_asked_for_only_when_it_is_used_up(host, daemon):
    daemon.policy.chunk = 64 * MIB
    child = host.python(
        """
        cuda = Cuda().start()
        held = [cuda.must_alloc(BLOCK) for _ in range(320)]
        say(cuda.alloc(9 * GiB)[0])
        for pointer in held:
            check(cuda.free(pointer))
        cuda.must_alloc(640 * MiB)
        """,
        **LIMIT,
    )
    assert child.said == 2
    *growth, huge = daemon.asks()
    assert len(growth) == 10, "one round trip for 64 MiB"
    assert all(ask.bytes == 2 * MIB for ask in growth)
    assert huge.bytes == 9 * GIB
    used, credit = daemon.page.word()
    assert (used, credit) == (640 * MIB, 640 * MIB)
    assert daemon.page.counts()["refusals"] == 1
    assert daemon.page.counts()["peak"] * 512 == 640 * MIB


def test_a_refusal_prints_the_daemons_words(host, daemon):
    daemon.policy.decide = lambda ask: wire.NOT_FREE
    daemon.policy.text = "cannot allocate 1.0 GiB on GPU 0: not free\n  held  bob/nb-2\nhint: wait"
    child = host.python("cuda = Cuda().start(); say(cuda.alloc(GiB)[0])", **LIMIT)
    assert child.said == 2
    assert child.err == "gpushare: " + daemon.policy.text + "\n"


@pytest.mark.parametrize(("told", "said"), [(3, "GPU 3"), (None, "CUDA device 0")])
def test_a_gpu_has_the_daemons_number_and_else_cudas(host, daemon, told, said):
    """CUDA counts what CUDA_VISIBLE_DEVICES names; the daemon counts what the node has."""
    daemon.policy.index = told
    daemon.policy.decide = lambda ask: wire.NOT_FREE
    child = host.python("cuda = Cuda().start(); say(cuda.alloc(GiB)[0])", **LIMIT)
    assert child.said == 2
    assert child.err.startswith(f"gpushare: cannot allocate 1.0 GiB on {said}: ")


def test_revoked_credit_is_asked_for_again(host, daemon):
    daemon.policy.chunk = GIB
    child = host.start(
        "cuda = Cuda().start(); p = cuda.must_alloc(BLOCK); say(1); hear(); cuda.must_alloc(BLOCK); say(2); hear()",
        **LIMIT,
    )
    child.stdout.readline()
    assert daemon.page.revoke(GIB) == GIB - 2 * MIB
    assert daemon.page.word() == (2 * MIB, 2 * MIB)
    tell(child)
    assert child.stdout.readline() == "2\n"
    assert [ask.bytes for ask in daemon.asks()] == [2 * MIB, 2 * MIB]
    tell(child)
    finish(child)


def test_what_the_program_is_told_comes_from_the_page(host, daemon):
    child = host.start(
        """
        cuda = Cuda().start(); cuda.must_alloc(GiB); say(1); hear()
        memory = Nvml().memory()
        say([cuda.info(), cuda.total(), memory.total, memory.free])
        """,
        **LIMIT,
    )
    child.stdout.readline()
    daemon.page.grant(256 * MIB)
    daemon.page.publish(2 * GIB)
    tell(child)
    out, _err = finish(child)
    free = 2 * GIB + 256 * MIB
    assert out == f"[[{free}, {8 * GIB}], {8 * GIB}, {8 * GIB}, {free}]\n"
    assert len(daemon.asks()) == 1, "and costs no round trip"


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (4 * GIB, "it is within this job's request and is being asked back from those who borrowed it"),
        (2 * GIB, "it is above this job's request, and others wait for what is within theirs"),
    ],
)
def test_a_claim_waits_and_others_do_not(host, daemon, own, words):
    """One thread waits; another allocates and is answered meanwhile; a line says what is waited for."""
    daemon.policy.request = own
    release = threading.Event()

    def decide(ask):
        if ask.bytes > GIB:
            release.wait(10)
        return wire.OK

    daemon.policy.decide = decide
    child = host.start(
        """
        import threading, time
        cuda = Cuda()
        context = cuda.start().primary()
        def big():
            check(cuda.cuCtxSetCurrent(context))
            say(["big", cuda.alloc(3 * GiB)[0]])
        thread = threading.Thread(target=big)
        thread.start()
        time.sleep(0.2)
        say(["small", [cuda.alloc(MiB)[0] for _ in range(20)]])
        hear()
        thread.join()
        """,
        **LIMIT,
    )
    assert child.stdout.readline() == f'["small", {[0] * 20}]\n'
    time.sleep(1.2)
    release.set()
    assert child.stdout.readline() == '["big", 0]\n'
    tell(child)
    _out, err = finish(child)
    assert err.startswith(f"gpushare: waiting for 3.0 GiB on GPU 0: {words}")


def test_many_threads_on_one_socket(host, daemon):
    """Answers come in any order; each thread gets its own, and the sum is right."""
    daemon.policy.limit = 64 * GIB
    said = host.python(
        """
        import threading
        cuda = Cuda()
        context = cuda.start().primary()
        codes, lock = [], threading.Lock()
        def work(seed):
            check(cuda.cuCtxSetCurrent(context))
            mine = []
            for i in range(60):
                code, pointer = cuda.alloc((seed * 7 + i) % 5 * BLOCK + BLOCK)
                mine.append((code, pointer))
            for code, pointer in mine[::2]:
                check(cuda.free(pointer))
            with lock:
                codes.extend(code for code, _ in mine)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        [thread.start() for thread in threads]; [thread.join() for thread in threads]
        say([len(codes), max(codes)])
        """,
        **LIMIT,
    ).said
    assert said == [480, 0]
    expected = sum(((seed * 7 + i) % 5 + 1) * 2 * MIB for seed in range(8) for i in range(1, 60, 2))
    used, credit = daemon.page.word()
    assert used == expected <= credit


def test_a_thread_that_has_its_answer_wakes_the_next_reader(host, daemon):
    """Of two that wait one reads the socket; when it has its answer, the other must go on reading."""
    daemon.policy.decide = lambda ask: time.sleep(0.2 if ask.bytes < GIB else 0.5) or wire.OK
    said = host.python(
        """
        import threading, time
        cuda = Cuda()
        context = cuda.start().primary()
        def later():
            time.sleep(0.1)
            check(cuda.cuCtxSetCurrent(context))
            cuda.must_alloc(2 * GiB)
        started = time.monotonic()
        thread = threading.Thread(target=later)
        thread.start()
        cuda.must_alloc(MiB)
        thread.join()
        say(time.monotonic() - started)
        """,
        **LIMIT,
    ).said
    assert said < 1.05


def test_an_answer_that_never_comes_is_out_of_memory(host, daemon):
    daemon.policy.patience_ms = 1
    daemon.policy.decide = lambda ask: None
    started = time.monotonic()
    child = host.python("cuda = Cuda().start(); say(cuda.alloc(GiB)[0])", **LIMIT)
    assert child.said == 2 and time.monotonic() - started < 5
    assert "does not answer" in child.err


def test_driver_out_of_memory_asks_once_and_tries_again(host, daemon):
    sim = host.environment()["GPUSHARE_SIM"]
    said = host.python(
        "cuda = Cuda().start(); say(cuda.alloc(GiB)[0])", GPUSHARE_SIM=sim + ",fail=cuMemAlloc_v2:1:2", **LIMIT
    )
    assert said.said == 0
    assert [ask.flags for ask in daemon.asks()] == [0, wire.DRIVER_FAILED]
    assert daemon.page.word()[0] == GIB


def test_driver_out_of_memory_for_good(host, daemon):
    sim = host.environment()["GPUSHARE_SIM"]
    daemon.policy.text = "the GPU is full"
    daemon.policy.decide = lambda ask: wire.TIMED_OUT if ask.flags else wire.OK
    child = host.python(
        "cuda = Cuda().start(); say(cuda.alloc(GiB)[0])", GPUSHARE_SIM=sim + ",fail=cuMemAlloc_v2:1+:2", **LIMIT
    )
    assert child.said == 2 and child.err == "gpushare: the GPU is full\n"
    assert daemon.page.word()[0] == 0


def test_attach_refused_is_out_of_memory(host, daemon):
    daemon.policy.attach, daemon.policy.text = wire.NOT_ADMITTED, "this job was not admitted on GPU 0"
    child = host.python(
        "cuda = Cuda(); cuda.cuInit(0); say(cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0))", **LIMIT
    )
    assert child.said == 2 and child.err == "gpushare: this job was not admitted on GPU 0\n"


def test_a_process_that_is_turned_away_gets_no_memory(host, daemon):
    daemon.policy.welcome, daemon.policy.text = wire.NOT_ALLOWED, "that is not your job"
    child = host.python(
        "cuda = Cuda(); cuda.cuInit(0); say(cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0))", **LIMIT
    )
    assert child.said == 2 and "gpushare: that is not your job\n" in child.err


def test_a_daemon_that_does_not_know_us_costs_a_limit_and_not_a_run(host, daemon):
    daemon.policy.welcome, daemon.policy.text = wire.UNKNOWN, "there is no such job"
    child = host.python("cuda = Cuda().start(); say([cuda.alloc(GiB)[0], cuda.alloc(8 * GiB)[0]])", **LIMIT)
    assert child.said == [0, 2]
    assert "there is no such job" in child.err


def test_contexts_are_counted_and_the_last_one_detaches(host, daemon):
    host.python(
        """
        cuda = Cuda().start()
        second = cuda.create()
        check(cuda.cuCtxDestroy_v2(second))
        check(cuda.cuDevicePrimaryCtxRelease_v2(0))
        cuda.start()
        """,
        **LIMIT,
    )
    kinds = [frame.type for frame in daemon.frames]
    assert kinds == [wire.ATTACH, wire.ATTACH, wire.DETACH, wire.ATTACH]
    assert [frame.contexts for frame in daemon.frames if frame.type == wire.ATTACH] == [0, 1, 0]
    assert daemon.page.counts()["contexts"] == 1


def test_each_context_is_asked_for_before_it_opens(host, daemon):
    """The primary one once, however often it is retained; a refusal is out-of-memory, and the others go on."""
    daemon.policy.text = "the limit is used up"
    child = host.start(
        """
        cuda = Cuda().start()
        cuda.primary(); cuda.primary()
        second = cuda.create()
        say(1); hear()
        say([cuda.cuCtxCreate_v2(byref(c_void_p()), 0, 0), cuda.alloc(MiB)[0], cuda.cuCtxDestroy_v2(second)])
        """,
        **LIMIT,
    )
    assert child.stdout.readline() == "1\n"
    daemon.policy.attach = wire.OVER_LIMIT
    tell(child)
    assert child.stdout.readline() == "[2, 0, 0]\n"
    assert "gpushare: the limit is used up" in child.communicate()[1]
    assert [frame.contexts for frame in daemon.frames if frame.type == wire.ATTACH] == [0, 1, 2]


DAEMON_GOES = """
cuda = Cuda().start()
held = cuda.must_alloc(100 * MiB)
say(1); hear()
for _ in range(100):
    check(cuda.free(cuda.must_alloc(MiB)))    # within the credit: nobody notices
say(2); hear()
import time
started = time.monotonic()
code = cuda.alloc(5 * GiB)[0]
say([code, time.monotonic() - started])
started = time.monotonic()
code = cuda.alloc(5 * GiB)[0]
say([code, time.monotonic() - started]); hear()
say(cuda.alloc(5 * GiB)[0])
"""


def test_a_daemon_that_goes_and_comes_back(host, daemon):
    daemon.policy.chunk = 256 * MIB
    child = host.start(DAEMON_GOES, **LIMIT)
    assert child.stdout.readline() == "1\n"
    daemon.stop()
    tell(child)
    assert child.stdout.readline() == "2\n"
    tell(child)
    first, second = eval(child.stdout.readline()), eval(child.stdout.readline())
    assert first[0] == 2 and 1 < first[1] < 6, "it is waited for, but not long"
    assert second[0] == 2 and second[1] < 1, "and not again by the next"
    assert daemon.page.word() == (100 * MIB, 256 * MIB)
    daemon.start()
    tell(child)
    out, err = finish(child)
    assert out == "0\n"
    assert "the gpushare daemon is away" in err
    assert [hello[1] for hello in daemon.hellos] == [0, daemon.page.id], "the same page is presented"
    assert daemon.page.word()[0] == 5 * GIB + 100 * MIB


def test_within_the_owna_daemon_that_is_away_is_waited_for_as_long_as_a_claim(host, daemon):
    """Longer than the two seconds for a loan; and the next allocation waits as well."""
    child = host.start(
        "cuda = Cuda().start(); say(1); hear(); say(cuda.alloc(GiB)[0]); say(cuda.alloc(GiB)[0])", **LIMIT
    )
    child.stdout.readline()
    daemon.stop()
    tell(child)
    time.sleep(5)
    daemon.start()
    out, err = finish(child)
    assert (out, err) == ("0\n0\n", "")
    assert daemon.page.unmet() == 0


def test_a_process_of_a_job_that_begins_while_the_daemon_is_away_waits_for_it(host, daemon):
    """Longer than the two seconds after which a program without a job begins alone, with a limit of its own."""
    daemon.stop()
    child = host.start("cuda = Cuda().start(); say(cuda.alloc(GiB)[0])", **LIMIT, GPUSHARE_JOB="1")
    time.sleep(5)
    daemon.start()
    out, err = finish(child)
    assert out == "0\n" and "there is no gpushare daemon" not in err
    assert daemon.page.word()[0] == GIB


def test_a_guarantee_that_no_daemon_was_there_to_keep_is_counted_in_the_page(host, daemon):
    daemon.policy.patience_ms = 500
    child = host.start(
        "cuda = Cuda().start(); say(1); hear(); say(cuda.alloc(GiB)[0]); say(cuda.alloc(5 * GiB)[0])", **LIMIT
    )
    child.stdout.readline()
    daemon.stop()
    tell(child)
    out, err = finish(child)
    assert out == "2\n2\n" and "the gpushare daemon is away" in err
    assert daemon.page.unmet() == 1, "of the two only the first was within the request"
    assert daemon.page.asking() == 0


def test_a_daemon_that_ends_at_each_ask_is_asked_again_but_not_as_fast_as_it_comes(host, daemon):
    """No number of lost connections ends a claim."""
    left = 6

    def decide(ask):
        nonlocal left
        left -= 1
        if left:
            threading.Thread(target=lambda: (daemon.stop(), daemon.start())).start()
            return None
        return wire.OK

    daemon.policy.decide = decide
    started = time.monotonic()
    child = host.python("cuda = Cuda().start(); say(cuda.alloc(GiB)[0])", **LIMIT)
    assert (child.said, child.err.count("away")) == (0, 0)
    assert len(daemon.asks()) == 6 and time.monotonic() - started > 0.05 + 0.1 + 0.2


def test_no_number_of_answers_that_bring_nothing_ends_a_claim(host, daemon):
    """Somebody takes the credit each time before the thread wakes; with one ticket it keeps its place."""
    tickets = []

    def decide(ask):
        tickets.append(ask.ticket)
        if len(tickets) < 300:
            return wire.BARE  # OK, and no credit
        return wire.OK

    daemon.policy.decide = decide
    child = host.python("cuda = Cuda().start(); say(cuda.alloc(GiB)[0]); say(cuda.alloc(GiB)[0])", **LIMIT)
    assert child.out == "0\n0\n"
    assert set(tickets[:300]) == {tickets[0]} != {0}, "the same allocation"
    assert tickets[300] not in (0, tickets[0]), "and another one"


def test_a_claim_whose_answers_bring_nothing_ends_when_its_time_is_over(host, daemon):
    daemon.policy.patience_ms = 200
    daemon.policy.decide = lambda ask: wire.BARE
    started = time.monotonic()
    child = host.python("cuda = Cuda().start(); say(cuda.alloc(GiB)[0])", **LIMIT)
    assert child.said == 2 and 4 < time.monotonic() - started < 15
    assert "other threads of this process took the memory" in child.err
    assert len(daemon.asks()) < 10_000, "it pauses between two asks"
    assert daemon.page.unmet() == 1


def test_the_page_says_who_is_about_to_take_credit(host, daemon):
    seen = []
    daemon.policy.decide = lambda ask: seen.append(ask.page.asking()) or wire.OK
    child = host.python("cuda = Cuda().start(); cuda.must_alloc(GiB); say(1)", **LIMIT)
    assert child.said == 1 and seen == [1] and daemon.page.asking() == 0


def test_closing_a_context_does_not_wait_for_a_daemon(host, daemon):
    child = host.start(
        """
        import time
        cuda = Cuda().start(); say(1); hear()
        started = time.monotonic()
        check(cuda.cuDevicePrimaryCtxRelease_v2(0))
        say(time.monotonic() - started)
        """,
        **LIMIT,
    )
    child.stdout.readline()
    daemon.stop()
    tell(child)
    out, err = finish(child)
    assert float(out) < 1.5 and err == ""


def test_a_context_that_opened_while_the_daemon_was_away_is_told_of_when_it_closes(host, daemon):
    """It was not attached, but the next daemon has seen it by NVML, and charges it."""
    child = host.start(
        """
        cuda = Cuda().start(); say(1); hear()
        check(cuda.cuDevicePrimaryCtxRelease_v2(0))
        cuda.primary(0); say(2); hear()
        cuda.primary(1)    # asks the new daemon
        check(cuda.cuDevicePrimaryCtxRelease_v2(0)); say(3)
        """,
        **LIMIT,
    )
    assert child.stdout.readline() == "1\n"
    daemon.stop()
    tell(child)
    assert child.stdout.readline() == "2\n"
    before = len(daemon.frames)
    daemon.start()
    tell(child)
    finish(child)
    assert [frame.type for frame in daemon.frames][before:] == [wire.ATTACH, wire.DETACH]


def test_the_first_frame_tells_all_that_the_job_has_chosen(host, daemon):
    host.python(
        "Cuda().start()",
        GPUSHARE_JOB="00000000000000ab",
        GPUSHARE_REQUEST="1Gi",
        GPUSHARE_LIMIT="25%",
        GPUSHARE_PRIORITY="-3",
        GPUSHARE_GRACE="7s",
        GPUSHARE_ON_RECLAIM="trim,term",
        GPUSHARE_MIN_RUN_TIME="2m",
        GPUSHARE_NAME="one",
    )
    ((job, page, flags, pid, request, kind, _, limit, share, _, priority, grace, name, steps, min_run),) = daemon.hellos
    assert (job, page, flags) == (0xAB, 0, 0) and pid > 0
    assert (request, kind, limit, share) == (GIB, 1, 25 * 10**7, 2), "bytes, and a share in billionths"
    assert (priority, grace, steps, min_run) == (-3, 7000, 1 | 2 | 4, 120_000), "kill is always the last step"
    assert name.rstrip(b"\0") == b"one"


def test_an_answer_is_taken_as_soon_as_it_is_there_whoever_reads(host, daemon):
    """One of the threads that wait reads for all. Another one whose answer has come reads nothing more itself."""
    daemon.policy.limit = daemon.policy.request = 16 * GIB
    daemon.policy.decide = lambda ask: time.sleep({GIB: 1.6, 2 * GIB: 0.5}[ask.bytes]) or wire.OK
    said = host.python(
        """
        import threading, time
        cuda = Cuda()
        context, took = cuda.start().primary(), {}
        def take(size):
            check(cuda.cuCtxSetCurrent(context))
            began = time.monotonic()
            cuda.must_alloc(size)
            took[size] = time.monotonic() - began
        threads = [threading.Thread(target=take, args=(size,)) for size in (GiB, 2 * GiB)]
        for thread in threads:
            thread.start()
            time.sleep(0.2)
        [thread.join() for thread in threads]
        say([took[GiB], took[2 * GiB]])
        """,
        **LIMIT,
    ).said
    assert said[0] >= 1.5 and 0.4 < said[1] < 1.2


def test_a_short_absence_is_not_noticed(host, daemon):
    child = host.start("cuda = Cuda().start(); say(1); hear(); say(cuda.alloc(GiB)[0])", **LIMIT)
    child.stdout.readline()
    daemon.stop()
    tell(child)
    time.sleep(0.7)
    daemon.start()
    out, err = finish(child)
    assert (out, err) == ("0\n", "")


def test_a_daemon_that_dies_while_it_is_waited_for(host, daemon):
    asked = threading.Event()
    answers = iter([None, wire.OK])

    def decide(ask):
        asked.set()
        return next(answers)

    daemon.policy.decide = decide
    child = host.start("cuda = Cuda().start(); say(cuda.alloc(GiB)[0])", **LIMIT)
    assert asked.wait(10)
    daemon.stop()
    daemon.start()
    out, _err = finish(child)
    assert out == "0\n" and len(daemon.asks()) == 2


def test_garbage_on_the_socket_ends_the_connection(host, daemon):
    child = host.start("cuda = Cuda().start(); say(1); hear(); say(cuda.alloc(GiB)[0])", **LIMIT)
    child.stdout.readline()
    for connection in daemon.connections:
        connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.send(b"x" * 512)
    tell(child)
    out, err = finish(child)
    assert (out, err) == ("0\n", "")
    assert len(daemon.hellos) >= 2


def test_no_daemon_is_said_once(host):
    child = host.python(
        "cuda = Cuda().start(); cuda.must_alloc(GiB); cuda.primary(1); say(cuda.alloc(9 * GiB)[0])", **LIMIT
    )
    assert child.said == 2
    assert child.err.count("there is no gpushare daemon") == 1
    assert "GPUSHARE_LIMIT=8Gi" in child.err and "hint: `gpushare run` starts a daemon" in child.err


def test_no_daemon_is_said_by_a_forked_child_too(host):
    """It is another process, with the whole limit for itself."""
    child = host.python(
        """
        first = os.fork()
        if first == 0:
            Cuda().start().must_alloc(MiB)
            os._exit(0)
        assert os.waitpid(first, 0)[1] == 0
        Cuda().start().must_alloc(MiB)
        second = os.fork()
        if second == 0:
            os.execve(sys.executable, [sys.executable, "-c", "from cuda_client import *; Cuda().start()"], os.environ)
        assert os.waitpid(second, 0)[1] == 0
        say(0)
        """,
        **LIMIT,
    )
    assert child.err.count("there is no gpushare daemon") == 3


def test_a_job_of_gpushare_run_waits_for_its_daemon(host, tmp_path, page_ops):
    """With GPUSHARE_JOB there must be one: it may just be restarting."""
    fake = FakeDaemon(tmp_path, page_ops)
    child = host.start("cuda = Cuda().start(); say(cuda.alloc(GiB)[0])", GPUSHARE_JOB="00000000000000ab", **LIMIT)
    time.sleep(0.5)
    fake.start()
    out, err = finish(child)
    fake.stop()
    assert (out, err) == ("0\n", "") and len(fake.hellos) == 1


@pytest.mark.parametrize("kind", ["socket.socket(socket.AF_UNIX)", "os.memfd_create('theirs')", "open('/dev/null')"])
def test_a_host_that_closes_all_descriptors(host, daemon, kind):
    """Daemonising programs do, and our numbers become theirs. The next call connects again, without the descriptor of
    the page: the daemon knows the process."""
    daemon.policy.chunk = 64 * MIB
    child = host.python(
        f"""
        import socket
        cuda = Cuda().start()
        cuda.must_alloc(MiB)
        os.closerange(3, 4096)
        theirs = [{kind} for _ in range(600)]
        codes = [cuda.alloc(32 * MiB)[0], cuda.alloc(GiB)[0]]
        numbers = [one if isinstance(one, int) else one.fileno() for one in theirs]
        say([codes, all(os.fstat(fd) for fd in numbers), max(numbers) > 513])
        """,
        **LIMIT,
    )
    assert child.said == [[0, 0], True, True], "nothing of the host's was closed"
    assert child.err == "" and len(daemon.hellos) == 2 and len(daemon.pages) == 1


def test_a_host_that_closes_all_descriptors_of_an_older_daemon(host, daemon):
    """It knows a process by the page's descriptor alone. What is in the page stays usable, and that is said once."""
    daemon.policy.chunk, daemon.policy.knows_by_pid = 64 * MIB, False
    child = host.python(
        """
        cuda = Cuda().start()
        cuda.must_alloc(MiB)
        os.closerange(3, 4096)
        say([cuda.alloc(32 * MiB)[0], cuda.alloc(GiB)[0], cuda.alloc(GiB)[0], cuda.alloc(MiB)[0]])
        """,
        **LIMIT,
    )
    assert child.said == [0, 2, 2, 0]
    assert child.err.count("the program has closed our descriptors") == 1
    assert len(daemon.hellos) == 2, "it does not ask again"


def test_our_descriptors_are_high_and_not_inherited(host, daemon):
    said = host.python(
        """
        import subprocess
        cuda = Cuda().start()
        ours = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[-2:]
        child = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, close_fds=False)
        say([ours, child.stdout.split()])
        """,
        **LIMIT,
    ).said
    ours, inherited = said
    assert all(fd >= 256 for fd in ours)
    assert not set(map(str, ours)) & set(inherited)


def test_a_forked_child_is_not_its_parent(host, daemon):
    """The child's doings change nothing in the parent's page, and the daemon sees the parent's end at its exit."""
    said = host.python(
        """
        cuda = Cuda().start()
        pointer = cuda.must_alloc(GiB)
        pid = os.fork()
        if pid == 0:
            cuda.free(pointer)
            cuda.alloc(BLOCK)
            mapped = any(name in open("/proc/self/maps").read() for name in ("page-",))
            high = [fd for fd in os.listdir("/proc/self/fd") if int(fd) >= 256]
            os._exit(1 if mapped or high else 0)
        status = os.waitpid(pid, 0)[1]
        say([status, cuda.alloc(BLOCK)[0]])
        """,
        **LIMIT,
    ).said
    assert said == [0, 0]
    assert daemon.pages[101].word()[0] == GIB + 2 * MIB


def test_threads_and_forks_do_not_deadlock(host, daemon):
    child = host.python(
        """
        import threading
        cuda = Cuda()
        context = cuda.start().primary()
        stop = False
        def churn():
            check(cuda.cuCtxSetCurrent(context))
            while not stop:
                check(cuda.free(cuda.must_alloc(MiB)))
        threads = [threading.Thread(target=churn) for _ in range(3)]
        [thread.start() for thread in threads]
        codes = []
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                cuda.info() if False else cuda.cuMemFree_v2(c_ulonglong(0))
                os._exit(0)
            codes.append(os.waitpid(pid, 0)[1])
        stop = True
        [thread.join() for thread in threads]
        say(codes)
        """,
        **LIMIT,
    )
    assert child.said == [0] * 20
    assert daemon.page.word()[0] == 0


def test_a_child_after_exec_is_a_process_of_its_own(host, daemon):
    host.python(
        """
        import subprocess
        Cuda().start()
        subprocess.run([sys.executable, "-c", "from cuda_client import *; Cuda().start()"], check=True)
        """,
        **LIMIT,
    )
    assert len(daemon.pages) == 2


def test_no_traces_in_the_host(host, daemon):
    """No signal handler, umask, stdout or working directory of ours, and errno is the program's."""
    said = host.python(
        """
        import signal
        def state():
            mask = os.umask(0); os.umask(mask)
            return [mask, os.getcwd(), [str(signal.getsignal(n)) for n in range(1, 32)]]
        libc = ctypes.CDLL(None, use_errno=True)
        before = state()
        cuda = Cuda().start()
        cuda.must_alloc(GiB)
        cuda.alloc(100 * GiB)
        caught = [line for line in open("/proc/self/status") if line.startswith("SigCgt")]
        say([before == state(), caught])
        """,
        **LIMIT,
    )
    same, caught = said.said
    assert same
    # With the first thread of a process the C library takes a signal for itself; ours is such a one.
    (plain,) = host.python(
        """
        import threading
        threading.Thread(target=int).start()
        say([l for l in open("/proc/self/status") if l.startswith("SigCgt")])
        """,
        LD_PRELOAD=None,
    ).said
    assert caught == [plain]


def test_signals_do_not_disturb_a_wait(host, daemon):
    daemon.policy.decide = lambda ask: time.sleep(0.6) or wire.OK
    said = host.python(
        """
        import signal
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        cuda = Cuda().start()
        code = cuda.alloc(GiB)[0]
        signal.setitimer(signal.ITIMER_REAL, 0)
        say(code)
        """,
        **LIMIT,
    ).said
    assert said == 0
