"""Programs that know of gpushare: their callbacks, checkpoints and questions, with the real daemon."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from integration.node import GIB, ROOT, Node, wait_for

CACHING = [sys.executable, str(ROOT / "examples" / "caching.py")]


def script(tmp_path: Path, body: str) -> list[str]:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(body))
    return [sys.executable, str(file)]


@pytest.mark.parametrize("silent", [False, True])
def test_a_cache_that_only_the_program_knows(node: Node, silent: bool) -> None:
    """The owner gets its memory at once from who has registered a callback; who has not is asked to stop."""
    words = ["--silent"] if silent else []
    a = node.run(
        "--name", "A", "--request", "2Gi", "--limit", "14Gi", "--grace", "10s", "--", *CACHING, "2", "10", *words
    )
    assert a.stdout is not None and a.stdout.readline().startswith("working with 2.0 GiB, keeping 10.0")
    b = node.puppet("B", "--request", "8Gi")
    b.alloc(6 * GIB)
    story = [record["event"] for record in node.api("GET", "/v1/jobs/A/story")["story"]]
    assert "trim" in story and ("term" in story) is silent
    assert a.poll() is None or silent
    if silent:
        assert "SIGTERM" in a.communicate(timeout=20)[0]
    else:
        assert "are wanted back: gave" in a.stdout.readline()
        assert node.job("A")["gpus"][0]["usage"] >= 2 * GIB
    assert b.end() == 0


def test_checkpointed_and_pressure(node: Node, tmp_path: Path) -> None:
    body = """
        import json, sys
        import gpushare
        from cuda.core import Device
        Device(0).set_current()
        def show(value):
            print(json.dumps(value), flush=True)
        show(gpushare.checkpointed())
        (gpu,) = gpushare.pressure()
        show([gpu.uuid, gpu.index, gpu.some.avg10, gpu.full.total])
        sys.stdin.readline()
        """
    job = node.run("--name", "A", "--limit", "4Gi", "--", *script(tmp_path, body))
    assert job.stdout is not None
    assert json.loads(job.stdout.readline()) is True
    uuid, index, share, total = json.loads(job.stdout.readline())
    assert uuid == node.api("GET", "/v1/status")["gpus"][0]["uuid"]
    assert (index, share, total) == (0, 0, 0)
    wait_for(
        lambda: "checkpointed" in [one["event"] for one in node.api("GET", "/v1/jobs/A/story")["story"]],
        "the checkpoint in the job's story",
    )
    job.communicate("\n", timeout=20)
    assert job.returncode == 0


def test_a_notebook_that_was_enabled_late(node: Node, tmp_path: Path) -> None:
    """The same thread, in the library that is the process's driver instead of being preloaded."""
    body = f"""
        import sys
        import gpushare
        gpushare.enable(request="2Gi", limit="14Gi", name="notebook")
        sys.path.insert(0, {str(ROOT / "examples")!r})
        sys.argv[1:] = ["2", "10"]
        import caching
        caching.main()
        """
    a = node.spawn(script(tmp_path, body))
    assert a.stdout is not None and a.stdout.readline().startswith("working with 2.0 GiB")
    b = node.puppet("B", "--request", "8Gi")
    b.alloc(6 * GIB)
    assert "are wanted back: gave" in a.stdout.readline()
    assert a.poll() is None
    story = [record["event"] for record in node.api("GET", "/v1/jobs/notebook/story")["story"]]
    assert "trimmed" in story and "term" not in story
    assert b.end() == 0
