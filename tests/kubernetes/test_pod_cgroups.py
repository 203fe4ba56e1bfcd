"""The cgroup of a pod is found by the pod's uid, whatever the kubelet's settings make of its path."""

from __future__ import annotations

import pytest

from gpushare.kubernetes.cgroups import below, of_pods, tops

UID = "1f2e3d4c-0000-4000-8000-000000000001"
SYSTEMD = UID.replace("-", "_")


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods/burstable/pod{UID}",
        f"kubepods/pod{UID}",
        f"kubelet/kubepods/besteffort/pod{UID}",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice",
        f"kubepods.slice/kubepods-pod{SYSTEMD}.slice",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SYSTEMD}.slice",
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_pods_cgroup_is_found(tmp_path, path, version):
    top = tmp_path if version == 2 else tmp_path / "memory"
    (top / path / "cri-containerd-17.scope").mkdir(parents=True)
    if version == 2:
        (tmp_path / "cgroup.controllers").touch()
    (top / "kubepods" / "burstable" / "pod1f2e3d4c").mkdir(parents=True)
    assert of_pods([UID], tmp_path) == {UID: f"/{path}"}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kubelet", ["kubepods", "kubelet/kubepods", "kubelet.slice/kubelet-kubepods.slice"])
def test_all_pods_of_a_kubelet_are_found_from_one(tmp_path, version, kubelet):
    top = tmp_path if version == 2 else tmp_path / "pids"
    for pod in (f"pod{UID}", "burstable/pod2", "besteffort/kubelet-kubepods-besteffort-pod3.slice"):
        (top / kubelet / pod / "container").mkdir(parents=True)
    if version == 2:
        (tmp_path / "cgroup.controllers").touch()
    found = tops([f"/{kubelet}/burstable/pod2"])
    assert found == {f"/{kubelet}"}
    assert below(found, tmp_path) == {f"pod{UID}", "pod2", "kubelet-kubepods-besteffort-pod3.slice"}
    assert below({"/kubepods/gone"}, tmp_path) == below(tops(["/system.slice/podx"]), tmp_path) == set()


def test_what_is_inside_of_a_pod_is_no_pod(tmp_path):
    """A container may make cgroups of its own, with any name."""
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / f"kubepods/podother/container/pod{UID}").mkdir(parents=True)
    assert of_pods([UID], tmp_path) == {}
    (tmp_path / f"kubepods/pod{UID}").mkdir()
    assert of_pods([UID, "gone"], tmp_path) == {UID: f"/kubepods/pod{UID}"}


def test_without_cgroups_nothing_is_found(tmp_path):
    assert of_pods([UID], tmp_path / "nowhere") == {} == of_pods([UID], tmp_path) == of_pods([], tmp_path)
