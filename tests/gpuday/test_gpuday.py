"""The day with a GPU, run on the software driver: as it is, and otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuday import table
from gpuday.__main__ import python_with_frameworks
from gpuday.day import Failed, Talk, has_module
from integration.node import wait_for

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "driver"))

import observe  # noqa: E402


@dataclass
class Played:
    status: int
    said: str
    lines: list[dict[str, Any]]
    report: str

    @property
    def assumptions(self) -> set[str]:
        return {finding["assumption"] for line in self.lines for finding in line["findings"]}


def play(out: Path, *options: object, **environment: str) -> Played:
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}:{ROOT / 'tests'}"} | environment
    line = [sys.executable, "-m", "gpuday", "--out", out, *options]
    done = subprocess.run(list(map(str, line)), env=env, capture_output=True, text=True, timeout=110)
    record, report = out / "gpu-day.jsonl", out / "gpu-day.md"
    lines = [json.loads(text) for text in record.read_text().splitlines()] if record.exists() else []
    return Played(done.returncode, done.stdout + done.stderr, lines, report.read_text() if report.exists() else "")


def processes_with(mark: str) -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_the_short_form_passes_on_the_software_driver(tmp_path):
    """An answer other than the recorded one: `python -m gpuday --driver sim --keep-as-software` records it again."""
    played = play(tmp_path, "--driver", "sim", "--quick", "--limit", "60")
    assert played.status == 0, played.said
    quick = [check for check in table.load() if check.quick]
    assert [(line["number"], line["state"]) for line in played.lines] == [(check.number, "passed") for check in quick]
    for line in played.lines:
        assert line["rc"] == 0 and line["seconds"] > 0
        assert f"### {line['number']}. {line['name']}: passed" in played.report
    assert "Every assumption that was tested holds." in played.report
    assert "all is as assumed" in played.said.splitlines()[-1]


def test_each_answer_that_is_compared_has_been_recorded():
    recorded = json.loads((ROOT / "tests" / "gpuday" / "software.json").read_text())
    for check in table.load():
        for answer in check.answers:
            if answer.like_software:
                assert answer.name in recorded[check.name][answer.side], (check.name, answer.name)


# Settings of the software driver: the assumption that they break, and the check that finds it, in one of its parts.
OTHERWISE = {
    "context=700Mi": ("context-guess", "context-overhead", "driver"),
    "teardown=3s": ("context-returns", "ends", "kill"),
}


@pytest.mark.parametrize("settings", OTHERWISE)
def test_a_driver_that_behaves_otherwise_is_found_out(tmp_path, settings):
    assumption, check, part = OTHERWISE[settings]
    options = ("--sim", f"memory=16Gi,{settings}", "--check", check, "--only", part, "--scale", "0.1")
    played = play(tmp_path, "--driver", "sim", *options)
    assert played.status == 1
    assert played.lines[0]["state"] == "otherwise"
    assert assumption in played.assumptions
    assert f"The assumption '{assumption}' does not hold: " in played.said
    assert f"* The assumption '{assumption}' does not hold: " in played.report
    assert f"**not as assumed: {assumption}**" in played.report


def test_a_check_that_fails_is_told_with_its_reason(tmp_path):
    settings = "memory=16Gi,fail=cuMemPoolTrimTo:1+:CUDA_ERROR_UNKNOWN"
    played = play(
        tmp_path,
        "--driver",
        "sim",
        "--sim",
        settings,
        "--limit",
        "60",
        *("--check", "pool-growth", "--check", "look-ups"),
    )
    assert played.status == 1
    assert [line["state"] for line in played.lines] == ["passed", "failed"]
    assert "cuMemPoolTrimTo returned 999" in played.lines[1]["error"]
    assert "**15 pool-growth failed**" in played.report


def test_a_check_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    """The daemon that it started has detached itself."""
    mark = uuid.uuid4().hex
    settings = "memory=16Gi,latency=cuMemAlloc_v2:600s"
    bystander = subprocess.Popen(["sleep", "100"])
    try:
        options = ("--driver", "sim", "--sim", settings, "--check", "lending", "--check", "look-ups", "--limit", "6")
        played = play(tmp_path, *options, DAY_MARK=mark)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert played.status == 1
    assert [(line["name"], line["state"]) for line in played.lines] == [
        ("look-ups", "passed"),
        ("lending", "timed out"),
    ]
    assert played.lines[1]["rc"] is None
    assert 6 <= played.lines[1]["seconds"] < 30
    assert processes_with(mark) == []


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_ask(tmp_path):
    played = play(tmp_path)
    assert (played.status, played.lines) == (2, [])
    assert "nothing is asked: no NVIDIA driver is loaded" in played.said


def test_a_check_that_does_not_exist_is_named(tmp_path):
    played = play(tmp_path, "--driver", "sim", "--check", "lok-ups")
    assert played.status == 1 and "there is no check lok-ups" in played.said


def test_only_a_part_of_a_check(tmp_path):
    played = play(tmp_path, "--driver", "sim", "--check", "out-of-memory", "--only", "torch")
    (line,) = played.lines
    assert line["skipped"] == {"driver": "not asked for", "torch": "needs a real GPU: it runs kernels"}
    assert (line["state"], played.status) == ("skipped", 2)


def test_the_python_that_has_the_framework_is_taken(tmp_path, monkeypatch):
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_module(str(other), ("torch",), {})
    (tmp_path / "torch.py").touch()
    assert has_module(str(other), ("nothing_like_it", "torch"), {})
    if not has_module(sys.executable, ("torch",), {}):
        assert python_with_frameworks() == str(other)
    assert not has_module(str(tmp_path / "no-python"), ("sys",), {})


def test_a_probe_that_hangs_keeps_what_it_has_answered(tmp_path, monkeypatch):
    settings = f"memory=16Gi,latency=cuDevicePrimaryCtxReset_v2:600s,pool={tmp_path}/pool"
    library = ROOT / "gpushare" / "sim" / "libcuda.so.1"
    monkeypatch.setattr(observe, "PATIENCE", 5.0)
    answers = observe.Driver(str(library), environment={"GPUSHARE_SIM": settings}).ask("contexts")
    assert answers["contexts: release once too often"] == 201
    assert "contexts: reset without users" not in answers
    assert answers["contexts: to its end"] == "signal 9"


def test_a_program_that_has_ended_can_be_told_to_end(tmp_path):
    pipe = subprocess.PIPE
    line = [sys.executable, "-c", "print('[\"one\", 1]')"]
    process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    process.wait()
    assert Talk("ended", process).end() == {"one": 1}
    assert process.stdin.closed
    process.stdout.close()
    process.stderr.close()


def test_a_program_that_fails_is_told_with_its_reason():
    pipe = subprocess.PIPE
    line = [sys.executable, "-c", "import sys; print('[\"one\", 1]'); sys.exit('that is why')"]
    for act in (Talk.end, lambda talk: talk.expect("two")):
        process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        with process, pytest.raises(Failed, match="failing ended with 1: that is why"):
            act(Talk("failing", process))


def test_a_day_that_is_ended_leaves_what_it_knew_and_no_process(tmp_path):
    mark = uuid.uuid4().hex
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}:{ROOT / 'tests'}", "DAY_MARK": mark}
    options = ["--driver", "sim", "--sim", "memory=16Gi,latency=cuMemAlloc_v2:600s", "--limit", "100"]
    options += ["--check", "look-ups", "--check", "out-of-memory", "--out", str(tmp_path)]
    day = subprocess.Popen([sys.executable, "-m", "gpuday", *options], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert "look-ups" in day.stdout.readline()
        wait_for(lambda: any("out_of_memory" in line for line in processes_with(mark)), "the program that hangs")
        day.terminate()
        assert day.wait(30) == 1
        assert [json.loads(line)["name"] for line in (tmp_path / "gpu-day.jsonl").read_text().splitlines()] == [
            "look-ups"
        ]
        assert "### 2. look-ups: passed" in (tmp_path / "gpu-day.md").read_text()
        assert processes_with(mark) == []
    finally:
        day.kill()
        day.wait()
        day.stdout.close()
