"""What `import gpushare` offers: each function reaches the daemon that answers here, and says in full what is wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import gpushare
from gpushare.errors import DaemonUnreachable, NoSuchJob, QuantityError


@pytest.fixture
def daemon(monkeypatch):
    """One with a job `train`; `daemon.did`: what it was told."""
    one = SimpleNamespace(did=[], error=None)

    def find(_settings):
        if one.error is not None:
            raise one.error
        return SimpleNamespace(client=lambda: one)

    def find_job(name):
        if name != "train":
            raise NoSuchJob(f"no job {name}", hint="did you mean train?")
        return {"id": "a1"}

    one.find_job = find_job
    one.change = lambda job, changes: one.did.append((job, changes)) or {"note": "changed"}
    one.status = lambda: {"gpus": [], "jobs": []}
    monkeypatch.setattr("gpushare.locate.find", find)
    return one


@pytest.mark.parametrize(("limit", "told"), [("12Gi", "12Gi"), (2**33, "8Gi"), (0.25, "0.25"), ("max", "max")])
def test_a_limit_is_changed_of_the_job_that_is_named(daemon, limit, told):
    assert gpushare.set_limit("train", limit) == {"note": "changed"}
    assert daemon.did == [("a1", {"limit": told})]


def test_what_is_wrong_with_a_limit_is_told_in_full_and_nothing_is_changed(daemon):
    with pytest.raises(QuantityError) as caught:
        gpushare.set_limit("train", "4GB")
    assert caught.value.__notes__ == ["hint: write 4Gi (2^30) or 4G (10^9)"]
    with pytest.raises(NoSuchJob) as caught:
        gpushare.set_limit("trian", "4Gi")
    assert caught.value.__notes__ == ["hint: did you mean train?"]
    daemon.error = DaemonUnreachable("none")
    with pytest.raises(DaemonUnreachable):
        gpushare.set_limit("train", "4Gi")
    assert daemon.did == []


def test_the_status_is_a_dict_that_a_notebook_can_show(daemon):
    found = gpushare.status()
    assert dict(found) == {"gpus": [], "jobs": []} and hasattr(found, "_repr_html_")
    daemon.error = DaemonUnreachable("none")
    with pytest.raises(DaemonUnreachable):
        gpushare.status()


def test_a_process_is_enabled_as_it_is_asked_for_and_told_in_full_why_not(monkeypatch):
    asked = []
    monkeypatch.setattr("gpushare.attach.enable", lambda *given, **more: asked.append((given, more)) or "enabled")
    assert gpushare.enable() == "enabled"
    assert gpushare.enable("1Gi", "2Gi", gpus=2, name="n") == "enabled"
    assert asked == [((None, None), {"gpus": 1, "name": None}), (("1Gi", "2Gi"), {"gpus": 2, "name": "n"})]

    def refuse(*_given, **_more):
        raise QuantityError("no amount", hint="write 4Gi")

    monkeypatch.setattr("gpushare.attach.enable", refuse)
    with pytest.raises(QuantityError) as caught:
        gpushare.enable()
    assert caught.value.__notes__ == ["hint: write 4Gi"]


def test_what_costs_time_is_loaded_when_it_is_asked_for_and_named_all_the_same():
    assert gpushare.Quantity.parse("4Gi").value == 2**32
    assert gpushare.errors.GpushareError is DaemonUnreachable.__mro__[1]
    assert {"Quantity", "errors", "enable", "set_limit", "status"} <= set(dir(gpushare))
    assert dir(gpushare) == sorted(dir(gpushare))
    with pytest.raises(AttributeError, match=r"^module 'gpushare' has no attribute 'nothing'$"):
        gpushare.__getattr__("nothing")
