"""What `gpushare doctor` finds of the driver, on machines of the test's making."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from gpushare.doctor import driver, finding

SINCE = 615
"""NVIDIA's driver that has limits of its own, as docs/compare.md says."""


def surroundings(version="", *, jobs=()):
    return SimpleNamespace(driver_version=version, client=SimpleNamespace(jobs=lambda: list(jobs)))


@pytest.mark.parametrize(
    ("kind", "version", "v2", "state", "detail"),
    [
        ("sim", "", True, "skip", "no NVIDIA driver"),
        ("nvidia", "570.10", True, "skip", f"driver 570.10; the driver's own limits come with r{SINCE}"),
        ("nvidia", f"{SINCE}.1", False, "skip", f"driver {SINCE}.1 has limits of its own, but they need cgroup v2"),
        ("nvidia", f"{SINCE}.1", True, "ok", f"driver {SINCE}.1 can enforce limits itself (nvidia-smi memory-limits)"),
        ("nvidia", f"{SINCE - 1}.9", True, "skip", f"driver {SINCE - 1}.9; the driver's own limits come with r{SINCE}"),
    ],
)
def test_limits_of_the_drivers_own(kind, version, v2, state, detail, monkeypatch):
    monkeypatch.setattr(driver.locate, "detect_driver", lambda: kind)
    monkeypatch.setattr(driver, "Path", lambda path: SimpleNamespace(exists=lambda: v2))
    found = driver.check_native_limits(surroundings(version))
    assert (found.state, found.detail) == (state, detail)


def test_a_driver_without_an_answer_has_no_limits_to_tell(monkeypatch):
    class Away:
        @property
        def driver_version(self):
            raise OSError("it hangs")

    monkeypatch.setattr(driver.locate, "detect_driver", lambda: "nvidia")
    found = driver.check_native_limits(Away())
    assert (found.state, found.detail) == ("skip", "it hangs")


def test_processes_with_a_second_driver_are_named(monkeypatch):
    job = {
        "id": "a1",
        "processes": [
            {"pid": 1, "command": "one"},
            {"pid": 2, "command": "two", "driver_copies": 2},
            {"pid": 3, "command": "three", "driver_copies": 0},
        ],
    }
    found = driver.check_copies(surroundings(jobs=[job, job | {"id": "b2"}]))
    words = "pid 2 (two) of job {} has 2 beside the one that is counted"
    assert (found.state, found.detail) == ("warn", f"{words.format('a1')}; {words.format('b2')}")
    for files, detail in (
        ([], "none"),
        (["/a"], "none"),
        (["/a", "/b"], "/a and /b are different files: a program that opens both gets the first one"),
    ):
        monkeypatch.setattr(driver, "driver_files", lambda cache, files=files: files)
        found = driver.check_copies(surroundings(jobs=[{"id": "a1", "processes": []}]))
        assert (found.state, found.detail) == ("ok", detail)


@pytest.mark.parametrize("version", ["570.10", b"570.10"])
def test_nvml_is_asked_and_left(version, monkeypatch):
    called = []

    class NVMLError(Exception): ...

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: called.append("init"),
        nvmlShutdown=lambda: called.append("shutdown"),
        nvmlSystemGetDriverVersion=lambda: version,
        nvmlDeviceGetCount=lambda: 3,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert finding.ask_nvml() == ("570.10", 3) and called == ["init", "shutdown"]

    def fail():
        raise NVMLError("Driver Not Loaded")

    nvml.nvmlDeviceGetCount = fail
    with pytest.raises(OSError, match="Driver Not Loaded"):
        finding.ask_nvml()
    assert called == ["init", "shutdown"] * 2


def test_a_file_that_cannot_be_read_is_empty_and_one_that_is_closed_to_us_is_there(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"text\xff")
    assert finding.read(str(tmp_path / "file")) == "text\ufffd" and finding.read(str(tmp_path / "none")) == ""
    assert finding.is_there(tmp_path / "file") and not finding.is_there(tmp_path / "none")

    def closed():
        raise PermissionError

    assert finding.is_there(SimpleNamespace(exists=closed))


def test_a_software_driver_without_settings_is_not_started(monkeypatch):
    started = []
    monkeypatch.delenv("GPUSHARE_SIM", raising=False)
    monkeypatch.setattr(driver.subprocess, "run", lambda *line, **how: started.append(line))
    assert driver._problem_of_software_driver() == "" and started == []


@pytest.mark.parametrize(
    ("code", "said", "problem"),
    [
        (0, "", ""),
        (0, "a warning\n", ""),
        (1, "more\n and more\ngpushare software driver: GPUSHARE_SIM: odd\n", "GPUSHARE_SIM: odd"),
        (1, "\n", ""),
    ],
)
def test_what_is_wrong_with_the_settings_of_the_software_driver_is_its_last_line(monkeypatch, code, said, problem):
    monkeypatch.setenv("GPUSHARE_SIM", "x")
    monkeypatch.setattr(driver.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code, stderr=said))
    assert driver._problem_of_software_driver() == problem
    monkeypatch.setattr(driver.locate, "detect_driver", lambda: "sim")
    monkeypatch.setattr(driver, "_has_nvidia_hardware", lambda: False)
    assert driver.check_driver(surroundings()).state == ("fail" if problem else "warn")


@pytest.mark.parametrize(
    ("vendor", "kind", "there"),
    [("0x10de\n", "0x030200\n", True), ("0x10de\n", "0x020000\n", False), ("0x8086\n", "0x030000\n", False)],
)
def test_a_gpu_of_nvidia_without_a_driver_has_the_way_to_it(monkeypatch, vendor, kind, there):
    files = {"/pci/1/vendor": "0x8086\n", "/pci/1/class": "0x060000\n", "/pci/2/vendor": vendor, "/pci/2/class": kind}
    monkeypatch.delenv("GPUSHARE_SIM", raising=False)
    monkeypatch.setattr(driver.locate, "detect_driver", lambda: "sim")
    monkeypatch.setattr(driver, "Path", lambda _path: SimpleNamespace(glob=lambda _any: ["/pci/1", "/pci/2"]))
    monkeypatch.setattr(driver, "read", files.get)
    found = driver.check_driver(surroundings())
    assert found.state == "warn" and "the software driver stands in" in found.detail
    assert found.fix == (("sudo modprobe nvidia", "sudo nvidia-modprobe -u") if there else ())
