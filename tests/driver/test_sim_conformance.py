"""The comparison of two drivers itself: it finds what differs, and nothing else, and says what it could not do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import compare
import observe
import pytest
from probes import PROBES
from simbuild import SHIM, compile_library

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The software driver's answers, as a file."""
    directory = tmp_path_factory.mktemp("recorded")
    file = directory / "answers.json"
    compare.observe_software(directory).save(file)
    return file


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, HERE / "compare.py", *map(str, words)]
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"} | environment
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=110, check=False)


def verdict(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.splitlines()[-1]


def test_every_probe_and_scenario_comes_to_its_end_on_the_software_driver(recorded: Path) -> None:
    values = observe.Observations.load(recorded).values
    ends = {name: value for name, value in values.items() if name.endswith("to its end") or name.startswith("scenario")}
    assert len(ends) == len(PROBES) + sum(map(len, observe.SCENARIOS.values()))
    assert {name: value for name, value in ends.items() if value != "passes"} == {}
    assert len(values) > 500
    for pattern in (*compare.MEANT, *compare.MEASURED, *compare.RELIED_ON):
        assert any(re.fullmatch(pattern, name) for name in values), f"nobody asks: {pattern}"


def test_the_same_driver_has_no_differences(recorded: Path) -> None:
    done = run("--against", recorded)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"\d+ questions, 0 differences, and 0 that are meant", verdict(done))


def test_differences_are_listed_with_what_they_mean(recorded: Path, tmp_path: Path) -> None:
    data = json.loads(recorded.read_text())
    values = data["observations"]
    values["linear codes: free twice"] = 700
    values["managed: 64 MiB take before they are touched"] = 0
    values["host: 16 MiB take of the device"] = 4096
    values["processes: milliseconds from a kill to its memory"] += 1
    del values["pitches: width 0"]
    values["a question of tomorrow"] = 1
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(data))
    done = run("--against", changed)
    assert done.returncode == 1
    assert verdict(done).endswith("questions, 4 differences, and 1 that are meant")
    for line in (
        "linear codes: free twice: software 1, real 700",
        "host: 16 MiB take of the device: software 0, real 4096   (the shim's account rests on this)",
        "pitches: width 0: software 1, real did not answer",
        "a question of tomorrow: software did not answer, real 1",
    ):
        assert line in done.stdout.splitlines()
    assert "(meant: managed memory is charged in full" in done.stdout


def test_another_model_shows_in_the_sizes_and_nowhere_else(recorded: Path, tmp_path: Path) -> None:
    """A driver whose pools grow in steps of 64 MiB, as a library of its own."""
    shutil.copytree(SHIM, tmp_path / "shim")
    model = tmp_path / "shim" / "sim" / "common_model.h"
    text = model.read_text()
    assert text.count("MODEL_POOL_STEP (32ull << 20)") == 1
    model.write_text(text.replace("MODEL_POOL_STEP (32ull << 20)", "MODEL_POOL_STEP (64ull << 20)"))
    library = tmp_path / "libcuda.so.1"
    compile_library(library, shim=tmp_path / "shim")
    settings = f"{compare.SETTINGS},pool={tmp_path / 'pool'}"
    real = observe.Driver(str(library), environment={"GPUSHARE_SIM": settings}).observe()
    found = list(compare.differences(observe.Observations.load(recorded), real))
    assert {one.name.partition(":")[0] for one in found} == {"pool growth"}
    assert any(one.name == "pool growth: reserved for 1" and one.real == 64 << 20 for one in found)
    assert all("reserved" in one.name for one in found)


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    done = run("--driver", tmp_path / "libcuda.so.1")
    assert done.returncode == 2
    assert verdict(done).startswith("nothing compared: ") and "does not start" in verdict(done)
    if observe.why_no_real_driver() is not None:
        done = run()
        assert done.returncode == 2
        assert verdict(done).startswith("nothing compared: ") and "--against FILE" in verdict(done)


def test_a_driver_that_dies_at_a_question_is_heard_up_to_there(sim_libraries: Path, tmp_path: Path) -> None:
    """A hooked abort stands for the crash of a real driver."""
    source = tmp_path / "crash.c"
    source.write_text("#include <stdlib.h>\nint cuMemHostUnregister(void *p) { (void)p; abort(); }\n")
    library = tmp_path / "libcuda.so.1"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-o",
        library,
        source,
        f"-L{sim_libraries}",
        "-Wl,--no-as-needed",
        "-l:libcuda.so.1",
    ]
    subprocess.run([*command, f"-Wl,-rpath,{sim_libraries}", "-Wl,-soname,libcrash.so"], check=True)
    settings = f"{compare.SETTINGS},pool={tmp_path / 'pool'}"
    answers = observe.Driver(str(library), environment={"GPUSHARE_SIM": settings}).ask("host")
    assert answers["host: to its end"] == "signal 6"
    assert answers["host: register twice"] == 712 and "host: unregister" not in answers
