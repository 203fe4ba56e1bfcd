"""Identity and life of processes: a pid that is used again, a zombie, a thread group without its first thread."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import time

import pytest
from daemon_harness import until

from gpushared.system.processes import (
    Process,
    _in_exit,
    _is_exiting,
    command_of,
    has_mapped,
    parent_of,
    printable,
    start_time,
    uid_of,
)


def test_a_process_is_its_pid_and_its_start():
    with subprocess.Popen(["sleep", "60"]) as child:
        process = Process.open(child.pid)
        assert not process.is_ending()
        assert process.start_time == start_time(child.pid)
        assert Process.open(child.pid, process.start_time + 1) is None
        assert parent_of(child.pid) == os.getpid() and uid_of(child.pid) == os.getuid()
        until(lambda: command_of(child.pid) == "sleep")
        assert process.send(signal.SIGKILL)
        until(lambda: not process.alive())
        # Not waited for yet: /proc still has it, and it counts as ended all the same.
        assert start_time(child.pid) is not None
        assert _in_exit(child.pid) and process.is_ending()
        assert Process.open(child.pid) is None
    assert not process.send(signal.SIGTERM)
    process.close()
    assert not process.alive() and process.is_ending()


def test_no_such_process():
    assert Process.open(0) is None and Process.open(-1) is None and Process.open(2**22) is None
    for beyond in (2**31, 2**40, -(2**31) - 1):  # in notes that are no notes
        assert Process.open(beyond) is None and Process.open(beyond, 5) is None
    assert start_time(2**22) is None and parent_of(2**22) is None and uid_of(2**22) is None
    assert command_of(2**22) == "?" and has_mapped(2**22, "x") is None


def test_a_process_lives_on_without_its_first_thread():
    """/proc/PID/stat says zombie then, and /proc/PID/maps is empty: neither means that it is gone."""
    code = """if 1:
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=(30,)).start()
        print("up", flush=True)
        ctypes.CDLL(None).syscall(60, 0)  # exit of this thread alone
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"up\n"
        process = Process.open(child.pid)
        time.sleep(0.1)
        assert process.alive()
        assert has_mapped(child.pid, "anything") is not True
        assert not process.is_ending(), "its other threads run on"
        process.send(signal.SIGKILL)
        until(lambda: not process.alive())
        process.close()


def test_the_peer_of_a_socket(directory):
    path = str(directory / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        code = f"import socket, time; s = socket.socket(1, 5); s.connect({path!r}); time.sleep(30)"
        with subprocess.Popen([sys.executable, "-c", code]) as child:
            accepted, _ = listener.accept()
            with accepted:
                for peer in (Process.of_peer(accepted), Process._of_peer_by_pid(accepted, child.pid)):
                    assert peer.pid == child.pid and peer.alive()
                    peer.close()
                child.kill()
                child.wait()
                assert Process.of_peer(accepted) is None
                assert Process._of_peer_by_pid(accepted, os.getpid()) is None, "hung up: the pid may be another's"


@pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (6, 5), reason="an older kernel tells only the pid of a peer"
)
def test_a_peer_that_has_hung_up_and_lives_is_known():
    """Its pid alone could be another's by now; the kernel keeps the process itself."""
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        peer = Process.of_peer(ours)
        assert peer is not None and peer.pid == os.getpid() and not os.get_inheritable(peer.pidfd)
        peer.close()


def test_a_program_that_does_not_say_its_name_has_that_of_its_file():
    with subprocess.Popen(["", "60"], executable="/bin/sleep") as child:
        until(lambda: command_of(child.pid) == "sleep")
        child.kill()


def test_a_program_is_called_what_it_calls_itself(tmp_path):
    """Not what the kernel calls it, which has 15 characters of its file's name."""
    program = tmp_path / "a_program_with_a_long_name"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as child:
        until(lambda: command_of(child.pid) == "a_program_with_a_long_name")
        child.kill()


def test_names_go_to_terminals():
    assert printable("a\x1b[31mb\n", 20) == "a?[31mb?" and printable("abc", 2) == "ab"


def test_whether_a_process_is_in_its_exit_is_told_of_each():
    """Of many: by chance another field of the kernel's line may say the same of some."""
    living = [subprocess.Popen(["sleep", "60"]) for _ in range(8)]
    try:
        assert not any(_in_exit(one.pid) for one in living) and not _in_exit(os.getpid())
        for one in living:
            one.kill()
            os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        assert all(_in_exit(one.pid) for one in living), "nobody has reaped them yet"
    finally:
        for one in living:
            one.kill()
            one.wait()
    assert not any(_in_exit(one.pid) for one in living)


def test_a_line_of_the_kernel_that_is_too_short_says_nothing():
    fields = [b"S", b"1", b"2", b"3", b"4", b"5", b"4"]
    assert _is_exiting(fields) and not _is_exiting([*fields[:6], b"3"])
    assert not _is_exiting(fields[:6]) and not _is_exiting(None)
