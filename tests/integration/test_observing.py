"""`gpushare run --mode observe`: what a program uses is seen, and nothing is done about it. `--mode off`: nothing."""

from __future__ import annotations

import json
from pathlib import Path

from integration.node import GIB, Node, wait_for


def test_an_observed_program_is_seen_and_left_alone(node: Node, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    watched = node.puppet("watched", "--mode", "observe", "--report", report)
    watched.alloc(6 * GIB)
    wait_for(lambda: node.job("watched")["gpus"][0]["usage"] >= 6 * GIB, "a sample")
    job = node.job("watched")
    assert job["state"] == "observed"
    assert (job["gpus"][0]["request"], job["gpus"][0]["loan"]) == (0, 0)
    assert node.gpu()["unmanaged"] >= 6 * GIB, "no guarantee is given on what it has"
    assert "; only observed: no budget" in node.gpushare("explain", "watched").stdout
    wide = node.gpushare("ps", "-o", "wide").stdout
    assert wide.count("observed") == 2
    assert "escaped" not in wide

    refused = node.gpushare("run", "--request", "10Gi", "true")
    assert refused.returncode == 125
    assert "outside gpushare" in refused.stderr
    borrower = node.puppet("train", "--request", "2Gi", "--limit", "8Gi")
    borrower.alloc(7 * GIB)
    owner = node.puppet("serve", "--request", "6Gi")
    owner.alloc(5 * GIB)
    assert borrower.wait() in {137, 143}, "a borrower is asked, the observed one is not"
    watched.alloc(GIB)
    assert watched.end() == 0
    assert json.loads(report.read_text())["gpus"][0]["peak"] >= 6 * GIB, "by which its limit may be chosen"


def test_what_the_observed_start_under_a_budget_has_one(node: Node) -> None:
    """The mode is the job's, and not inherited by others."""
    text = "import os; print('GPUSHARE_MODE' in os.environ, 'libgpushare' in os.environ.get('LD_PRELOAD', ''))"
    inner = ["gpushare", "run", "--limit", "2Gi", "python3", "-c", text]
    done = node.gpushare("run", "--mode", "observe", "python3", "-m", *inner)
    assert (done.returncode, done.stdout) == (0, "False True\n"), done.stderr


def test_off_is_as_if_gpushare_were_not_there(node: Node) -> None:
    preload = node.gpushare("shim-path").stdout.strip()
    text = "import os; print(sorted({'LD_PRELOAD', 'GPUSHARE_JOB', 'GPUSHARE_LIMIT'} & set(os.environ)))"
    done = node.gpushare("run", "--mode", "off", "python3", "-c", text, LD_PRELOAD=preload)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert not (node.runtime / "api.sock").exists(), "no daemon is started for it"


def test_a_budget_and_no_budget_contradict_each_other(node: Node) -> None:
    for mode in ("observe", "off"):
        done = node.gpushare("run", "--mode", mode, "--limit", "4Gi", "true")
        assert done.returncode == 125
        assert f"--limit means nothing with --mode {mode}" in done.stderr
    done = node.gpushare("run", "--mode", "off", "--report", "x.json", "true")
    assert done.returncode == 125
