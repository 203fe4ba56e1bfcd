"""Programs of several processes: each way to start one, the pools of workers, threads; one job, one budget."""

from __future__ import annotations

import sys
import textwrap

import pytest

from integration.node import wait_for

GIB = 2**30


@pytest.mark.parametrize("way", ["exec", "vfork", "spawn", "fork"])
def test_children(hosts, compile_c, way):
    """The child of fork alone has no CUDA (3: not initialised); each other is a process of the job with memory."""
    program = hosts.run("--limit", "4Gi", "--name", "parent", "--", compile_c("starts.c"), way)
    line = program.stdout.readline()
    assert line == ("0 3 0\n" if way == "fork" else "0 0 0\n"), (line, program.stderr.read() if not line else "")
    (gpu,) = hosts.job("parent")["gpus"]
    assert gpu["accounted"] == 2 * GIB, "the parent's own, untouched by what its child was"
    assert len(hosts.job("parent")["processes"]) == 1
    _, err = program.communicate("\n")
    assert "gpushare: " not in err or "peak" in err, err


WORKERS = """
    import multiprocessing
    def work(size, results, go):
        cuda, context = Cuda(), c_void_p()
        code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(byref(context), 0) or cuda.cuCtxSetCurrent(context)
        results.put(code or cuda.alloc(size)[0])
        go.wait()
    if __name__ == "__main__":
        context = multiprocessing.get_context("METHOD")
        results, go = context.Queue(), context.Event()
        if PARENT:
            Cuda().start().must_alloc(2 * GiB)
        workers = [context.Process(target=work, args=(2 * GiB, results, go)) for _ in range(4)]
        for one in workers:
            one.start()
        say(sorted(results.get(timeout=30) for _ in workers))
        hear()
        go.set()
        for one in workers:
            one.join()
        say([one.exitcode for one in workers])
"""


@pytest.mark.parametrize(
    ("method", "parent", "codes"),
    [
        ("spawn", False, [0, 0, 0, 2]),
        ("forkserver", False, [0, 0, 0, 2]),
        ("fork", False, [0, 0, 0, 2]),
        ("spawn", True, [0, 0, 0, 2]),
        ("fork", True, [3, 3, 3, 3]),
    ],
)
def test_pools_of_workers(hosts, tmp_path, method, parent, codes):
    """As a DataLoader starts them. The limit is that of all together: three of the four fit, and not the fourth.

    A context is charged with 512 MiB until it is measured to be of 256: the limit is right for both.
    """
    file = tmp_path / "workers.py"
    text = WORKERS.replace("METHOD", method).replace("PARENT", str(parent))
    file.write_text("from cuda_client import *\n" + textwrap.dedent(text))
    limit = 11 * 1024 if parent else 8 * 1024 + 512
    program = hosts.run("--limit", f"{limit}Mi", "--name", "pool", "--", sys.executable, file)
    line = program.stdout.readline()
    assert line.strip() == str(codes), (line, program.communicate("\n")[1])
    (gpu,) = hosts.job("pool")["gpus"]
    assert gpu["accounted"] == (parent + codes.count(0)) * 2 * GIB
    assert gpu["usage"] <= gpu["limit"] == limit * 2**20
    out, err = program.communicate("\n")
    assert out.strip() == "[0, 0, 0, 0]" and program.returncode == 0, err
    wait_for(lambda: hosts.gpu()["usage"] == 0, "all memory to be back")


def test_threads(hosts):
    """Eight threads allocate and free at once, each on a device of its own choice."""
    said = hosts.python(
        """
        import random, threading
        cuda = Cuda()
        check(cuda.cuInit(0))
        contexts = [cuda.primary(0), cuda.primary(1)]
        def work(seed):
            dice, held = random.Random(seed), []
            for _ in range(300):
                check(cuda.cuCtxSetCurrent(contexts[dice.randrange(2)]))
                if held and dice.random() < 0.5:
                    check(cuda.free(held.pop()))
                else:
                    result, pointer = cuda.alloc(dice.randrange(1, 200 * MiB))
                    assert result in (SUCCESS, OUT_OF_MEMORY)
                    held += [pointer] if result == SUCCESS else []
            for one in held:
                check(cuda.free(one))
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for one in threads: one.start()
        for one in threads: one.join()
        left = []
        for context in contexts:
            check(cuda.cuCtxSetCurrent(context))
            left.append([cuda.info()[1], cuda.alloc(2500 * MiB)[0]])
        say(left)
        """,
        *("--limit", "3Gi", "--gpus", 2),
    )
    assert said == [[3 * GIB, 0]] * 2, "all of it is there again"
