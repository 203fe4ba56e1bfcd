"""GPUs that fall ill under a real daemon: what the driver says reaches jobs, programs and whoever asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2, InProcess, until

from gpushare.errors import GpushareError
from gpushared.core import health_issues
from gpushared.gpus.inventory import Fault, GpuInfo, Sample


@pytest.fixture
def daemon(make_daemon: Callable[..., InProcess]) -> InProcess:
    return make_daemon(health_interval=0.2)


def submit(daemon: InProcess, **changes: Any) -> dict[str, Any]:
    body = {"name": "a", "command": ["python"], "request": "4Gi", "limit": "8Gi", "gpus": 1} | changes
    return daemon.client.register(body)


def health(daemon: InProcess, index: int = 0) -> dict[str, Any]:
    return next(gpu for gpu in daemon.client.status()["gpus"] if gpu["index"] == index)["health"]


def causes(daemon: InProcess, index: int = 0) -> list[str]:
    return [one["cause"] for one in health(daemon, index)["ailments"] if one["cause"] != "unattributed"]


def by_uuid(daemon: InProcess) -> dict[str, Any]:
    return {gpu["uuid"]: gpu for gpu in daemon.client.status()["gpus"]}


def kinds(daemon: InProcess, job: str) -> list[str]:
    entry = daemon.shell.registry.get(job)
    return [notice["kind"] for notice in entry.notices]


def test_an_xid_is_heard_at_once_and_the_next_job_goes_elsewhere(daemon: InProcess) -> None:
    job = submit(daemon, devices=[GPU])
    daemon.gpus.faults.put(Fault((GPU,), 95))
    until(lambda: kinds(daemon, job["id"]) == ["gpu_sick"])
    assert causes(daemon) == ["xid_95"]
    assert submit(daemon)["gpus"][0]["uuid"] == GPU2
    with pytest.raises(GpushareError) as refused:
        submit(daemon, devices=[GPU])
    assert refused.value.code == "gpu_unhealthy"
    assert "GPU 0 is sick: Xid 95, memory error, not contained" in refused.value.message
    _, body = daemon.http("GET", "/metrics")
    text = body.decode()
    assert f'gpushare_gpu_health{{gpu_uuid="{GPU}",state="sick"}} 1.0' in text
    assert f'gpushare_gpu_health{{gpu_uuid="{GPU2}",state="sick"}} 0.0' in text
    assert f'gpushare_gpu_xids_total{{gpu_uuid="{GPU}",xid="95"}} 1.0' in text
    assert f'gpushare_gpu_guarantee_shortfall_bytes{{gpu_uuid="{GPU}"}} 0.0' in text


def test_what_polling_finds_comes_and_goes(daemon: InProcess) -> None:
    daemon.gpus.issues[GPU] = (health_issues.uncorrected(3), health_issues.rows_pending())
    until(lambda: causes(daemon) == ["ecc_uncorrected", "rows_pending"])
    assert health(daemon)["state"] == "degraded"
    daemon.gpus.issues[GPU] = ()
    until(lambda: causes(daemon) == [])


def test_the_state_is_known_before_the_first_job_is_admitted(make_daemon: Callable[..., InProcess]) -> None:
    from fixed_gpus import FixedGpus

    gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)], issues={GPU: (health_issues.rows_failed(),)})
    daemon = make_daemon(gpus)
    with pytest.raises(GpushareError) as refused:
        submit(daemon)
    assert refused.value.code == "gpu_unhealthy"


def test_a_gpu_that_does_not_answer_is_asked_why_and_comes_back(make_daemon: Callable[..., InProcess]) -> None:
    daemon = make_daemon(health_interval=0.5)
    job = submit(daemon, devices=[GPU], request="4Gi")
    shim = daemon.connect()
    shim.hello(job=job["id"])
    shim.attach(GPU)
    daemon.gpus.issues[GPU] = (health_issues.lost(),)
    daemon.gpus.samples[GPU] = None
    until(lambda: kinds(daemon, job["id"]) == ["gpu_lost"])
    answer = shim.ask(1 * GIB)
    assert answer.status != 0
    assert "GPU 0 is lost: it has fallen off the bus" in answer.text
    assert daemon.shell.core.counters.violations == {"gpu_lost": 1}
    failures = daemon.shell.gpus.failures
    daemon.gpus.issues[GPU] = ()
    del daemon.gpus.samples[GPU]
    until(lambda: health(daemon)["state"] != "lost")
    assert daemon.shell.gpus.failures - failures <= 1, "it is not sampled while it is lost"
    until(lambda: kinds(daemon, job["id"])[-1] == "gpu_ok")
    assert shim.ask(1 * GIB).status == 0
    shim.close()


def test_gpus_come_go_and_change_their_size(daemon: InProcess) -> None:
    all_of_them = list(daemon.gpus.infos)
    daemon.gpus.infos = [GpuInfo(GPU2, 0, "Test GPU", 16 * GIB)]
    until(lambda: by_uuid(daemon)[GPU]["health"]["state"] == "lost")
    assert "it is no longer in this machine" in str(by_uuid(daemon)[GPU]["health"])
    assert submit(daemon, devices=["0"])["gpus"][0]["uuid"] == GPU2, "the index of the one that is there"
    daemon.gpus.infos = [GpuInfo(GPU, 0, "Test GPU", 15 * GIB), all_of_them[1]]
    until(lambda: by_uuid(daemon)[GPU]["total"] == 15 * GIB)
    until(lambda: by_uuid(daemon)[GPU]["health"]["state"] != "lost")
    third = "GPU-00000000-0000-0000-0000-000000000003"
    daemon.gpus.infos = [*all_of_them, GpuInfo(third, 2, "Test GPU", 24 * GIB)]
    until(lambda: len(daemon.client.status()["gpus"]) == 3)
    assert submit(daemon, request="20Gi", limit="20Gi")["gpus"][0]["uuid"] == third


def test_what_was_asked_before_an_xid_does_not_hide_it(make_daemon: Callable[..., InProcess]) -> None:
    """A GPU falls off the bus while it is being examined: the answer from before says that it is well."""
    daemon = make_daemon(health_interval=3600.0)
    asked, answer = threading.Event(), threading.Event()
    examine = daemon.gpus.examine
    calls: list[str] = []

    def slow(uuid: str) -> Any:
        calls.append(uuid)
        before = examine(uuid)
        if len(calls) == 1:
            asked.set()
            answer.wait(5)
        return before

    daemon.gpus.examine = slow  # type: ignore[method-assign]
    daemon.call(lambda: daemon.daemon.health_monitor.suspect(GPU))
    assert asked.wait(5)
    daemon.gpus.issues[GPU] = (health_issues.lost(),)
    daemon.gpus.faults.put(Fault((GPU,), 79))
    until(lambda: health(daemon)["state"] == "lost")
    answer.set()
    until(lambda: len(calls) >= 2)
    assert health(daemon)["state"] == "lost"
    told = [one for one in daemon.shell.core.records if one.event.startswith("gpu_") and one.job is None]
    assert [one.event for one in told] == ["gpu_lost"]


def test_memory_that_nobody_is_told_of_is_shown_as_such(daemon: InProcess) -> None:
    until(lambda: "unattributed" in [one["cause"] for one in health(daemon)["ailments"]])
    daemon.gpus.samples[GPU] = Sample(0, {})
    submit(daemon)
    until(lambda: health(daemon)["state"] == "ok")
