"""`gpushare cdi`: the file that it writes, what may not be in it, and what it lists. Against a daemon of a test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fake_api import UUID

from gpushare import cdi, container
from gpushare.container import Inside
from gpushare.errors import UsageError

INSIDE = Inside(Path("/lib/libgpushare.so"), Path("/x/containers"), {"A": "1"})


@pytest.fixture
def made(gpushare, fake, tmp_path):
    """Make a device; its file's one device and its placement's body."""

    def made(*words: str) -> tuple[dict[str, Any], dict[str, Any]]:
        code, out, err = gpushare("cdi", "small", "--folder", str(tmp_path / "cdi"), *words)
        assert (code, err) == (0, ""), err
        assert out == "made gpushare.dev/gpu=small; start a container with --device gpushare.dev/gpu=small\n"
        path = tmp_path / "cdi" / "gpushare.dev-gpu_small.json"
        assert path.stat().st_mode & 0o777 == 0o644
        (device,) = json.loads(path.read_text())["devices"]
        (created, _) = device["containerEdits"]["hooks"]
        return device, json.loads(created["args"][-1])

    return made


def variables(device: dict[str, Any]) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in device["containerEdits"]["env"])


def test_each_container_of_it_is_a_job_with_this_budget(made, fake):
    device, body = made("--request", "4Gi", "--limit", "16Gi", "--priority", "7", "--no-lend", "--grace", "5s")
    assert device["name"] == "small"
    options = {"request": "4Gi", "limit": "16Gi", "name": "small", "lend": False, "priority": 7, "grace": 5.0}
    assert options.items() <= body.items() and body["gpus"] == [UUID.format(0)]
    assert (body["uid"], body["attempt"]) == (0, 1)
    found = variables(device)
    assert (found["GPUSHARE_REQUEST"], found["GPUSHARE_LIMIT"], found["GPUSHARE_MODE"]) == ("4Gi", "16Gi", "enforce")
    assert "GPUSHARE_VISIBLE" not in found and found["GPUSHARE_DRIVER"] == "sim"
    hooks = device["containerEdits"]["hooks"]
    assert [one["hookName"] for one in hooks] == ["createRuntime", "poststop"]
    assert {one["args"][-2] for one in hooks} == {str(fake.socket.resolve())}


def test_what_programs_see_and_what_their_framework_needs(made):
    found = variables(made("--limit", "4Gi", "--visible", "request", "--for", "jax")[0])
    assert found["GPUSHARE_VISIBLE"] == "request" and "XLA_PYTHON_CLIENT_PREALLOCATE" in found
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in variables(made("--limit", "4Gi")[0])


@pytest.mark.parametrize(
    ("gpus", "words", "found"),
    [
        (1, [], [0]),
        (2, ["--gpu", "1"], [1]),
        (2, ["--gpu", UUID.format(1)], [1]),
        (3, ["--gpu", "2", "--gpu", "0"], [2, 0]),
        (2, ["--gpu", "1", "--gpu", UUID.format(1)], [1]),
    ],
)
def test_the_gpus_that_are_named(made, fake, gpus, words, found):
    fake.gpus = gpus
    assert made("--limit", "4Gi", *words)[1]["gpus"] == [UUID.format(index) for index in found]


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ([], "a device has a request, or a limit for itself alone", "--request 4Gi --limit 16Gi"),
        (["--limit", "4Gi", "--gpu", "7"], "no GPU 7 on this node", "`gpushare status` lists them"),
        (["--limit", "4Gi", "--on-reclaim", "trim,suspend,term"], "the reclaim step suspend is only for", "trim,term"),
        (["--limit", "4Gi", "--on-reclaim", "hook,term"], "the reclaim step hook is only for", "trim,term"),
    ],
)
def test_what_a_device_cannot_have(gpushare, fake, tmp_path, words, said, hint):
    code, out, err = gpushare("cdi", "small", "--folder", str(tmp_path / "cdi"), *words)
    assert (code, out) == (2, "") and said in err and hint in err
    assert not (tmp_path / "cdi").exists()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GPUSHARE_RELIEF_CMD", "true", "a hook is only for"),
        ("GPUSHARE_RESUME_URL", "http://localhost:1", "a hook is only for"),
        ("GPUSHARE_COMPUTE", "0.5", "a turn in computing is only for"),
        ("GPUSHARE_EXCLUSIVE", "5s", "a turn in computing is only for"),
        ("GPUSHARE_MODE", "observe", "the mode observe is only for"),
        ("GPUSHARE_MODE", "off", "the mode off is only for"),
    ],
)
def test_what_the_environment_says_for_programs_alone(gpushare, fake, tmp_path, monkeypatch, variable, value, said):
    monkeypatch.setenv(variable, value)
    code, _, err = gpushare("cdi", "small", "--limit", "4Gi", "--folder", str(tmp_path))
    assert code == 2 and said in err
    assert ("leave out" in err) == ("mode" not in said)
    assert list(tmp_path.glob("*.json")) == []


def test_several_gpus_are_not_chosen_among(gpushare, fake, tmp_path):
    fake.gpus = 2
    code, _, err = gpushare("cdi", "small", "--limit", "4Gi", "--folder", str(tmp_path))
    assert code == 2 and "this node has 2 GPUs" in err and "say which: --gpu 0" in err


def test_devices_are_listed_and_taken_away(gpushare, made, fake, tmp_path):
    folder = str(tmp_path / "cdi")
    assert gpushare("cdi", "--folder", folder) == (
        0,
        "",
        "no devices: `gpushare cdi --help` shows how to make one\n",
    )
    made("--request", "4Gi", "--limit", "16Gi")
    code, out, _ = gpushare("cdi", "--folder", folder)
    head, line = out.splitlines()
    assert code == 0 and head.split() == ["DEVICE", "GPU", "REQUEST", "LIMIT"]
    assert line.split() == ["gpushare.dev/gpu=small", UUID.format(0), "4Gi", "16Gi"]
    (listed,) = json.loads(gpushare("cdi", "--folder", folder, "--json")[1])["devices"]
    assert (listed["name"], listed["limit"]) == ("small", "16Gi")
    assert gpushare("cdi", "small", "--remove", "--folder", folder) == (0, "", "")
    assert not list((tmp_path / "cdi").glob("*.json"))
    code, _, err = gpushare("cdi", "small", "--remove", "--folder", folder)
    assert code == 2 and "there is no device gpushare.dev/gpu=small" in err and "`gpushare cdi` lists them" in err


@pytest.mark.parametrize("words", [["--remove"], ["--gpu", "0"], ["--limit", "4Gi"], ["--for", "jax"]])
def test_without_a_name_there_is_nothing_to_make(gpushare, fake, tmp_path, words):
    code, _, err = gpushare("cdi", "--folder", str(tmp_path), *words)
    assert code == 2 and "say the NAME of the device" in err


@pytest.mark.parametrize("words", [["--limit", "4Gi"], ["--remove"]])
def test_a_folder_of_another_user(gpushare, fake, tmp_path, monkeypatch, words):
    def refused(*_given: Any, **_how: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cdi, "write_file", refused)
    monkeypatch.setattr(cdi, "remove", refused)
    code, out, err = gpushare("cdi", "small", "--folder", str(tmp_path), *words)
    assert (code, out) == (4, "") and f"cannot write {tmp_path}: Permission denied" in err and "--folder" in err


# ---- the file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("a", True),
        ("a-b.c_d:e", True),
        ("x" * 63, True),
        ("x" * 64, False),
        ("", False),
        ("-a", False),
        ("a-", False),
        ("a/b", False),
    ],
)
def test_what_an_engine_takes_as_a_name(name, good):
    if good:
        assert cdi.file_of(name, Path("/f")) == Path(f"/f/gpushare.dev-gpu_{name}.json")
        return
    with pytest.raises(UsageError, match="is not a device's name"):
        cdi.file_of(name, Path("/f"))


def nvidia(name: str, version: str = "0.5.0", **edits: Any) -> dict[str, Any]:
    return {
        "cdiVersion": version,
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": edits}],
        "containerEdits": {"env": ["ALL=1"]},
    }


GPU = {"uuid": "GPU-a", "index": 0}
GPU1 = {"uuid": "GPU-b", "index": 1}


def test_what_nvidia_describes_of_the_gpus_is_joined(monkeypatch):
    specs = [nvidia("0", "0.6.0", mounts=["m0"]), nvidia("GPU-b", "0.10.0", mounts=["m0", "m1"], odd="text")]
    monkeypatch.setattr(container, "nvidia_specs", lambda folders: specs)
    assert cdi.described([GPU, GPU1], []) == {
        "cdiVersion": "0.10.0",
        "env": ["ALL=1"],
        "mounts": ["m0", "m1"],
        "odd": [],
    }
    with pytest.raises(UsageError, match="has not described GPU 7") as caught:
        cdi.described([GPU, {"uuid": "GPU-z", "index": 7}], [])
    assert "nvidia-ctk cdi generate" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("of_gpus", "version"),
    [({}, "0.5.0"), ({"cdiVersion": "0.4.0"}, "0.5.0"), ({"cdiVersion": "0.10.0", "mounts": ["m"]}, "0.10.0")],
)
def test_the_file_has_the_version_that_all_of_it_needs(of_gpus, version):
    body = {"gpus": ["GPU-a"], "name": "x", "request": "1Gi", "limit": "2Gi"}
    found = cdi.spec(body, INSIDE, Path("/x/api.sock"), of_gpus=of_gpus, more={"B": "2"})
    assert found["cdiVersion"] == version and found["kind"] == "gpushare.dev/gpu"
    edits = found["devices"][0]["containerEdits"]
    assert [key for key in edits if key not in ("env", "hooks")] == ["mounts"]
    assert (edits["mounts"][0] == "m") is ("mounts" in of_gpus), "the GPUs' own come first"
    assert {"A=1", "B=2", "LD_PRELOAD=/usr/local/lib/libgpushare.so"} <= set(edits["env"])
    for hook in edits["hooks"]:
        assert hook["timeout"] == 30 and hook["args"][1:3] == ["-m", "gpushare.container_hook"]
        assert hook["env"][0] == f"PYTHONPATH={Path(cdi.__file__).parents[1]}"


def test_files_that_cannot_be_read_are_no_devices(tmp_path):
    body = {"gpus": ["GPU-a"], "name": "x", "request": "1Gi", "limit": "2Gi"}
    cdi.write_file(cdi.file_of("good", tmp_path), cdi.spec({**body, "name": "good"}, INSIDE, Path("/s")), 0o600)
    assert cdi.file_of("good", tmp_path).stat().st_mode & 0o777 == 0o600
    for number, text in enumerate(
        ("", "[]", "{}", '{"devices": []}', '{"devices": [{"containerEdits": {"hooks": []}}]}')
    ):
        (tmp_path / f"gpushare.dev-gpu_bad{number}.json").write_text(text)
    (tmp_path / "other.json").write_text("{}")
    assert list(cdi.devices(tmp_path)) == ["good"] and cdi.devices(tmp_path)["good"]["limit"] == "2Gi"
    assert sorted(one.name for one in tmp_path.iterdir() if one.name.startswith(".")) == []
    assert cdi.devices(tmp_path / "none") == {}


# ---- options of podman and docker -----------------------------------------------------------------------------


ENVIRON = {
    "LD_PRELOAD": "/l.so",
    "GPUSHARE_LIMIT": "4Gi",
    "GPUSHARE_JOB": "old",
    "PATH": "/x",
    "HOME": "/h",
    "NEW": "1",
}
BEFORE = {"HOME": "/h", "PATH": "/y", "GPUSHARE_LIMIT": "4Gi"}
JOB = {"id": "a1", "gpus": [{"uuid": "GPU-a", "index": 0}, {"uuid": "GPU-b", "index": 1}]}


def engine(*words: str, inside: Inside = INSIDE) -> list[str]:
    return container.engine_command(words, ENVIRON, BEFORE, JOB, inside)


def test_the_engine_has_our_options_after_its_word_run(monkeypatch):
    monkeypatch.setattr(container, "nvidia_devices", lambda gpus, folders: None)
    line = engine("podman", "--log-level", "x", "run", "--rm", "image", "run")
    assert line[:4] == ["podman", "--log-level", "x", "run"] and line[-3:] == ["--rm", "image", "run"]
    said = [word.removeprefix("--env=") for word in line if word.startswith("--env=")]
    assert {"GPUSHARE_LIMIT=4Gi", "GPUSHARE_JOB=a1", "NEW=1", "A=1"} <= set(said)
    assert not [word for word in said if word.startswith(("PATH=", "HOME="))]
    assert "--volume=/lib/libgpushare.so:/usr/local/lib/libgpushare.so:ro" in line
    assert [word for word in line if word.startswith("--device")] == [
        "--device=nvidia.com/gpu=GPU-a",
        "--device=nvidia.com/gpu=GPU-b",
    ]


def test_docker_names_gpus_in_its_own_way_unless_they_are_described(monkeypatch):
    monkeypatch.setattr(container, "nvidia_devices", lambda gpus, folders: None)
    assert '--gpus="device=GPU-a,GPU-b"' in engine("/usr/bin/docker", "run", "image")
    monkeypatch.setattr(container, "nvidia_devices", lambda gpus, folders: ["nvidia.com/gpu=0"])
    for name in ("docker", "podman"):
        found = [word for word in engine(name, "run", "image") if word.startswith(("--device", "--gpus"))]
        assert found == ["--device=nvidia.com/gpu=0"]
    sim = Inside(Path("/l"), Path("/s"), {}, driver="sim")
    assert not [word for word in engine("podman", "run", "image", inside=sim) if word.startswith("--device")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["podman", "ps"], "there is no word run in this podman command"),
        (["docker", "run", "-d", "image"], "with -d docker ends at once"),
        (["docker", "run", "--detach", "image"], "with --detach docker ends at once"),
        (["docker", "run", "--name", "x", "-itd", "image"], "with -itd docker ends at once"),
        (["docker", "run", "--rm", "--detach=true", "image"], "with --detach=true docker ends at once"),
    ],
)
def test_a_container_that_would_leave_the_job(words, said):
    with pytest.raises(UsageError, match=said):
        engine(*words)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "image", "-d"],
        ["run", "--rm", "image", "tool", "--detach"],
        ["run", "--name=x", "image", "-d"],
        ["run", "-it", "image", "-d"],
        ["run", "--dns", "-x", "--rm", "image", "-d"],
        ["run", "-dx", "image"],
    ],
)
def test_options_of_the_program_are_its_own(words):
    assert engine("podman", *words)[0] == "podman"


def test_without_the_library_a_container_is_no_job():
    with pytest.raises(UsageError, match="so --mode is enforce"):
        container.engine_command(["podman", "run", "x"], {}, BEFORE, JOB, INSIDE)


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_file_is_in_place_at_once_and_open_to_whom_it_should_be_whatever_the_umask(tmp_path, mode):
    path = tmp_path / "new" / "deep" / "a.json"
    before = os.umask(0o077)
    try:
        for content in ({"a": 1}, {"b": "x" * 100}, {}):
            cdi.write_file(path, content, mode)
            assert json.loads(path.read_text()) == content
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    assert [one.name for one in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize("nothing", [{}, {"containerEdits": None}, {"containerEdits": {}}])
def test_a_gpu_or_a_file_without_edits_of_its_own_adds_none(tmp_path, nothing):
    edits = {"env": ["A=1"], "mounts": [{"hostPath": "/a"}]}
    gpus = [{"uuid": "GPU-a", "index": 0}]
    for of_file, of_gpu in (({"containerEdits": edits}, nothing), (nothing, {"containerEdits": edits})):
        content = {"kind": container.NVIDIA, **of_file, "devices": [{"name": "GPU-a", **of_gpu}]}
        (tmp_path / "nvidia.json").write_text(json.dumps(content))
        assert cdi.described(gpus, [tmp_path]) == {**edits, "cdiVersion": cdi.VERSION}
