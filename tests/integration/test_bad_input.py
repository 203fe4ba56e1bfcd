"""What users and strangers get wrong: a clear message with the way out, nothing lost, no traceback."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket

import pytest

from integration.node import GIB, Node

BAD_OPTIONS = [
    (["--limit", "4g"], "4Gi"),
    (["--limit", "4096"], "4096Mi"),
    (["--limit", "4096m"], "4096M"),
    (["--limit", "0"], "none"),
    (["--limit", "-1Gi"], "sign"),
    (["--limit", "1.5"], "1.5"),
    (["--limit", "150%"], "150%"),
    (["--limit", "nan"], "nan"),
    (["--limit", ""], "empty"),
    (["--request", "8Gi", "--limit", "4Gi"], "request"),
    (["--request", "100Gi"], "more than GPU 0 has"),
    (["--gpus", "3"], "3 GPUs"),
    (["--grace", "soon"], "soon"),
    (["--priority", "high"], "high"),
    (["--driver", "amd"], "amd"),
    (["--limt", "4Gi"], "--limit"),
]


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS, ids=[" ".join(options) for options, _ in BAD_OPTIONS])
def test_bad_options_of_run(node: Node, options: list[str], says: str) -> None:
    done = node.gpushare("run", *options, "true")
    assert done.returncode == 125, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_that_are_not_there(node: Node) -> None:
    assert node.gpushare("run", "--limit", "1Gi", "no-such-program").returncode == 127
    assert node.gpushare("run", "--limit", "1Gi", "/etc/passwd").returncode == 126


def test_unknown_gpu(node: Node) -> None:
    done = node.gpushare("run", "--limit", "1Gi", "true", CUDA_VISIBLE_DEVICES="7")
    assert done.returncode == 125
    assert "7" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_variable_is_named_with_its_nearest(node: Node) -> None:
    done = node.gpushare("run", "--limit", "1Gi", "true", GPUSHARE_LIMITS="2Gi")
    assert done.returncode == 0
    assert "GPUSHARE_LIMITS" in done.stderr
    assert "GPUSHARE_LIMIT" in done.stderr.replace("GPUSHARE_LIMITS", "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_unreadable_socket(node: Node) -> None:
    node.start_daemon()
    (node.runtime / "api.sock").chmod(0)
    done = node.gpushare("ps")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_no_daemon(node: Node) -> None:
    for command in (["ps"], ["status"], ["explain"], ["set", "x", "--limit", "1Gi"]):
        done = node.gpushare(*command)
        assert done.returncode == 3, f"{command}: {done.stderr}"
        assert "Traceback" not in done.stderr


def test_garbage_on_both_sockets_harms_nobody(node: Node) -> None:
    node.start_daemon()
    a = node.puppet("A", "--request", "1Gi", "--limit", "4Gi")
    a.alloc(GIB)
    for size in (0, 1, 16, 511, 512, 513, 5000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(str(node.runtime / "shim.sock"))
            if size:
                stranger.send(secrets.token_bytes(size))
                stranger.settimeout(0.2)
                with contextlib.suppress(TimeoutError, ConnectionResetError):
                    stranger.recv(4096)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(str(node.runtime / "api.sock"))
            stranger.sendall(secrets.token_bytes(size))
    a.alloc(GIB)
    assert node.job("A")["gpus"][0]["accounted"] == 2 * GIB
    assert "Traceback" not in node.log()
    assert a.end() == 0
