"""What is wrong with the settings of the software driver is said by the daemon that does not start, and by doctor."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpushare.doctor.driver import check_driver


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("foo=1", "GPUSHARE_SIM: unknown key 'foo'"),
        ("memory=inf", "GPUSHARE_SIM: memory=inf"),
        ("gpus", "GPUSHARE_SIM: "),
    ],
)
def test_it_is_said_and_stays_on_standard_error_for_the_log(
    monkeypatch: pytest.MonkeyPatch, settings: str, said: str
) -> None:
    monkeypatch.setenv("GPUSHARE_SIM", settings)
    monkeypatch.setenv("GPUSHARE_DRIVER", "sim")
    code = "from gpushared.gpus.nvml import Nvml; Nvml('sim')"
    tried = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert f"the software driver does not start: {said}" in tried.stderr
    assert f"gpushare software driver: {said}" in tried.stderr
    found = check_driver(None)  # type: ignore[arg-type]
    assert found.state == "fail" and said in found.detail
    monkeypatch.setenv("GPUSHARE_SIM", "gpus=2")
    assert check_driver(None).state != "fail"  # type: ignore[arg-type]
