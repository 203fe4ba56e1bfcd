"""What a claim's containers get, and the files that say it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import yaml
from claims import GPU, GPU2, gpu

from gpushare.container import Inside, nvidia_devices
from gpushare.kubernetes import cdi

INSIDE = Inside(Path("/var/lib/gpushare-dra/lib/libgpushare-1.so"), Path("/run/gpushare/containers"), {"A": "1"})
BODY = {"gpus": [GPU, GPU2], "job": "00000000000000aa", "name": "team-a/train", "request": "8Gi", "limit": "12Gi"}


def edits(**more):
    made = cdi.spec("c-1", BODY, more, INSIDE)
    assert (made["kind"], made["devices"][0]["name"]) == ("gpushare.dev/claim", "c-1")
    found = made["devices"][0]["containerEdits"]
    return dict(line.split("=", 1) for line in found["env"]), found["mounts"]


def test_the_library_is_preloaded_from_where_it_is_mounted():
    variables, mounts = edits()
    (library,) = [one for one in mounts if one["containerPath"] == variables["LD_PRELOAD"]]
    assert library["hostPath"] == str(INSIDE.library)
    assert "ro" in library["options"] and "noexec" not in library["options"], "it is executed"


def test_the_only_socket_in_the_container_is_that_of_programs():
    variables, mounts = edits()
    assert [one["hostPath"] for one in mounts] == [str(INSIDE.library), "/run/gpushare/containers"]
    folder = mounts[1]["containerPath"]
    assert variables["GPUSHARE_SOCKET"] == f"{folder}/api.sock", "the library looks for shim.sock beside it"
    assert folder == "/run/gpushare", "where it also looks without the variable"


def test_the_budget_is_said_and_only_the_claims_gpus_are_seen():
    variables, _ = edits(GPUSHARE_VISIBLE="request")
    assert variables["CUDA_VISIBLE_DEVICES"] == f"{GPU},{GPU2}"
    assert (variables["GPUSHARE_JOB"], variables["GPUSHARE_NAME"]) == ("00000000000000aa", "team-a/train")
    assert (variables["GPUSHARE_REQUEST"], variables["GPUSHARE_LIMIT"]) == ("8Gi", "12Gi")
    assert (variables["GPUSHARE_VISIBLE"], variables["A"]) == ("request", "1")


def test_a_file_is_there_as_a_whole_for_root_alone_and_can_be_taken_away_twice(tmp_path):
    folder = tmp_path / "cdi"
    old = os.umask(0)
    try:
        for limit in ("12Gi", "13Gi"):
            cdi.write("c-1", cdi.spec("c-1", BODY | {"limit": limit}, {}, INSIDE), folder)
    finally:
        os.umask(old)
    (path,) = folder.iterdir()
    assert path.name == "gpushare.dev-claim_c-1.json" and path.stat().st_mode & 0o777 == 0o600
    assert "GPUSHARE_LIMIT=13Gi" in json.loads(path.read_text())["devices"][0]["containerEdits"]["env"]
    assert cdi.claims_with_files(folder) == ["c-1"]
    cdi.remove("c-1", folder)
    cdi.remove("c-1", folder)
    assert cdi.claims_with_files(folder) == []


def test_nvidias_devices_are_named_by_uuid_or_by_index_where_it_has_described_them(tmp_path):
    gpus = [gpu(), gpu(GPU2, 1)]
    assert nvidia_devices(gpus, [tmp_path, tmp_path / "nowhere"]) is None
    described = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all"}, {"name": "1"}]}
    (tmp_path / "nvidia.yaml").write_text(yaml.safe_dump(described))
    assert nvidia_devices(gpus, [tmp_path]) is None, "not all of them"
    assert nvidia_devices(gpus[1:], [tmp_path]) == ["nvidia.com/gpu=1"]
    described["devices"] = [{"name": GPU}, {"name": "0"}, {"name": 1}]
    (tmp_path / "more.json").write_text(json.dumps(described))
    assert nvidia_devices(gpus, [tmp_path]) == [f"nvidia.com/gpu={GPU}", "nvidia.com/gpu=1"]


def test_files_of_others_that_cannot_be_read_do_not_matter(tmp_path):
    for name, text in (("a.json", "{"), ("b.yaml", "- x"), ("c.yaml", "kind: nvidia.com/gpu"), ("d.json", "\0")):
        (tmp_path / name).write_text(text)
    (tmp_path / "e.json").mkdir()
    assert nvidia_devices([gpu()], [tmp_path]) is None
