"""The check by which a driver proves that it can suspend a program, run on the software driver."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpushare import suspend_check

ROOT = Path(__file__).resolve().parents[2]


def checked(sim: Any, tmp_path: Path, more: str = "") -> dict[str, Any]:
    settings = f"{sim.settings},pool={sim.pool}{more}"
    environ = sim.environment(GPUSHARE_SIM=settings, XDG_CACHE_HOME=str(tmp_path))
    environ["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "gpushare.suspend_check"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_good_driver_passes_and_the_result_is_kept(sim: Any, tmp_path: Path) -> None:
    result = checked(sim, tmp_path)
    assert result["good"] and not result["problem"] and result["out"] > 0 and result["back"] > 0
    file = suspend_check.result_file({"XDG_CACHE_HOME": str(tmp_path)})
    assert suspend_check.kept(file, result["driver"]) == result
    assert suspend_check.kept(file, 99990) is None, "another driver has not been tried"


DOCTOR = """
from gpushare import locate
locate.detect_driver = lambda: "nvidia"
from gpushare.doctor.driver import check_suspend
found = check_suspend(None)
print(found.state, found.detail)
"""


def doctor(sim: Any, tmp_path: Path) -> str:
    """What it says on a machine with this driver, if that were NVIDIA's."""
    environ = sim.environment(XDG_CACHE_HOME=str(tmp_path)) | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", DOCTOR], env=environ, capture_output=True, text=True, check=True
    ).stdout


def test_doctor_tells_what_the_check_has_found(sim: Any, tmp_path: Path) -> None:
    assert doctor(sim, tmp_path).startswith("skip not tried yet")
    checked(sim, tmp_path)
    rates = r"[0-9.]+ [GM]iB a second out, [0-9.]+ [GM]iB a second back"
    assert re.match(f"ok tried with 64.0 MiB: {rates}", doctor(sim, tmp_path))
    checked(sim, tmp_path, ",fail=cuCheckpointProcessCheckpoint:1:801")
    said = doctor(sim, tmp_path)
    assert said.startswith("warn jobs are not suspended: cuCheckpointProcessCheckpoint: CUDA_ERROR_NOT_SUPPORTED")


def test_a_driver_that_refuses_fails_with_its_words(sim: Any, tmp_path: Path) -> None:
    result = checked(sim, tmp_path, ",fail=cuCheckpointProcessCheckpoint:1:801")
    assert not result["good"]
    assert result["problem"] == "cuCheckpointProcessCheckpoint: CUDA_ERROR_NOT_SUPPORTED"


def test_a_driver_that_loses_the_program_fails(sim: Any, tmp_path: Path) -> None:
    result = checked(sim, tmp_path, ",checkpoint_break=2")
    assert not result["good"] and result["problem"]


def test_a_file_that_is_not_ours_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "suspend.json"
    for text in ("", "[]", "{}", '{"13000": 7}', '{"13000": {"driver": 1}}'):
        file.write_text(text)
        assert suspend_check.kept(file, 13000) is None
