"""Trims against everything that threads do at the same time; also with the library under the sanitizers."""

from __future__ import annotations

import subprocess
import time

import pytest
from shim_tree import SHIM

GIB, MIB = 2**30, 2**20
BORROWS = {"GPUSHARE_LIMIT": "8Gi", "GPUSHARE_REQUEST": "4Gi", "GPUSHARE_LOG": "error"}
ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREAD = ("-fsanitize=thread", "-Wno-tsan")
DOORS = ("entry.c", "loader.c")  # these answer a sanitizer's own look-ups before it has started


@pytest.fixture(scope="session", params=[ADDRESS, THREAD], ids=["address", "thread"])
def sanitized(request, compile_c, libraries, tmp_path_factory):
    """The program and the library, both instrumented."""
    flags, directory = request.param, tmp_path_factory.mktemp("sanitized")
    common = ["gcc", "-std=gnu11", "-O1", "-g", "-fPIC", "-fvisibility=hidden", f"-I{SHIM}", f"-I{SHIM / 'preload'}"]
    doors = [SHIM / "preload" / name for name in DOORS]
    others = [path for path in sorted((SHIM / "preload").glob("*.c")) if path.name not in DOORS]
    assembly = list((SHIM / "preload").glob("*.S"))
    plain, shim = directory / "doors.o", directory / "libgpushare.so"
    subprocess.run([*common, "-r", *doors, *assembly, "-o", plain], check=True)
    subprocess.run([*common, *flags, "-shared", "-Wl,-Bsymbolic", *others, plain, "-o", shim], check=True)
    driver = str(libraries.driver_dir / "libcuda.so.1")
    return compile_c("trim_threads.c", *flags, sources=(str(shim), driver), target=f"trim_threads_{flags[0][11:15]}")


@pytest.fixture(scope="session")
def plain(compile_c, libraries):
    return compile_c("trim_threads.c", sources=(str(libraries.driver_dir / "libcuda.so.1"),))


def start(host, line, **environ):
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [str(word) for word in line],
        env=host.environment(**BORROWS, **environ),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )


def disturb(daemon, seconds):
    """Ask for trims as fast as they are done; how many were."""
    until, done = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for page in list(daemon.pages.values()):
            if page.trim_ready and page.trim_done == page.trim_begun:
                page.ask_for_trim(GIB, within_ms=100)
        time.sleep(0.002)
        done = min((page.trim_done for page in daemon.pages.values()), default=0)
    return done


def test_under_the_sanitizers(host, daemon, sanitized):
    daemon.policy.chunk = 64 * MIB
    # What libc keeps for each thread (the last error of dlsym) goes with the thread, which may be on its way out.
    libc = host.directory / "libc.supp"
    libc.write_text("leak:_dlerror_run\n")
    options = f"suppressions={libc}:print_suppressions=0"
    with start(host, ["setarch", "-R", sanitized], LD_PRELOAD=None, LSAN_OPTIONS=options) as child:
        assert child.stdout.readline() == "started\n", child.stderr.read()
        assert disturb(daemon, 3) > 3
        _, err = child.communicate(timeout=60)
        print(err)
        assert (child.returncode, err) == (0, "")
    assert daemon.page.word()[0] == 0, "all that was charged has been given back"


@pytest.mark.parametrize("way", ["", "fork"])
def test_the_account_is_right_in_the_end(host, daemon, plain, way):
    with start(host, [plain, way]) as child:
        for _ in range(3 if way else 1):
            assert child.stdout.readline() == "started\n", child.stderr.read()
        assert disturb(daemon, 3) > 3
        _, err = child.communicate(timeout=60)
        assert (child.returncode, err) == (0, "")
    assert len(daemon.pages) == (3 if way else 1)
    assert {page.word()[0] for page in daemon.pages.values()} == {0}


def test_exit_in_the_middle(host, daemon, plain):
    for _ in range(10):
        with start(host, [plain, "exit"]) as child:
            assert child.stdout.readline() == "started\n", child.stderr.read()
            began = time.monotonic()
            while child.poll() is None:
                disturb(daemon, 0.02)
                assert time.monotonic() < began + 5
            assert child.returncode == 0, child.stderr.read()


def test_a_main_thread_that_goes_first(host, daemon, plain):
    """Its process ends with the last thread of the program, which ours is not."""
    with start(host, [plain, "main"]) as child:
        assert child.stdout.readline() == "started\n", child.stderr.read()
        daemon.page.await_ready()
        child.stdin.close()
        assert child.wait(timeout=10) == 0
