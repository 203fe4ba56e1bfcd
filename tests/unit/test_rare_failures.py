"""What is said, and done instead, where files, processes and drivers are not as they should be."""

from __future__ import annotations

import ctypes.util
import json
import os
import signal
import sys
import time
import urllib.error
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import (
    checkpoint,
    config,
    container,
    env,
    exit_message,
    history,
    hook_call,
    hook_url,
    host_memory,
    kernelspec,
    locate,
    process_owner,
    reasons,
    spawn,
    suspend_check,
    unixhttp,
)
from gpushare import client as clients
from gpushare.cli import complete, mistakes, top
from gpushare.doctor import driver as doctor_driver
from gpushare.engine_hooks import Call
from gpushare.errors import CommandNotExecutable, CommandNotFound, GpushareError, UsageError
from gpushare.hook_settings import Hook
from gpushare.notebook import magic, previous_kernel, sigterm

NOWHERE = "/proc/none/at/all"


# ---- drivers -------------------------------------------------------------------------------------------


def test_a_driver_that_is_not_there_or_too_old() -> None:
    with pytest.raises(checkpoint.DriverError, match=r"^the driver cannot be loaded: /none.so"):
        checkpoint.DriverCheckpoints("/none.so")
    with pytest.raises(checkpoint.DriverError) as caught:
        checkpoint.DriverCheckpoints(ctypes.util.find_library("c") or "libc.so.6")
    assert str(caught.value) == "this driver cannot suspend processes: that needs CUDA 12.8, driver 570"


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (("570.1", 1), "ok", "driver 570.1, 1 GPU"),
        (("570.1", 2), "ok", "driver 570.1, 2 GPUs"),
        (("570.1", 0), "ok", "driver 570.1, 0 GPUs"),
        (OSError("no NVML"), "fail", "the driver is there, but NVML does not answer: no NVML"),
    ],
)
def test_what_the_doctor_says_of_a_driver(monkeypatch, answer, status, words) -> None:
    def ask() -> tuple[str, int]:
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(locate, "detect_driver", lambda *_: "nvidia")
    monkeypatch.setattr(doctor_driver, "ask_nvml", ask)
    found = doctor_driver.check_driver(SimpleNamespace())
    assert (found.state, found.detail) == (status, words)


def test_what_the_doctor_says_where_a_driver_cannot_suspend(monkeypatch) -> None:
    def none() -> None:
        raise checkpoint.DriverError("this driver cannot")

    monkeypatch.setattr(locate, "detect_driver", lambda *_: "nvidia")
    monkeypatch.setattr(checkpoint, "DriverCheckpoints", none)
    found = doctor_driver.check_suspend(SimpleNamespace())
    assert (found.state, found.detail) == ("skip", "this driver cannot")


def test_no_loader_no_copies(monkeypatch) -> None:
    monkeypatch.setattr(doctor_driver.shutil, "which", lambda *_args, **_more: None)
    assert doctor_driver._loader_cache() == ""
    nobody = SimpleNamespace(client=SimpleNamespace(jobs=list))
    found = doctor_driver.check_copies(nobody)
    assert (found.state, found.detail) == ("ok", "none")


class DeadDriver:
    """Suspends nothing."""

    def version(self) -> str:
        return "570"


def test_a_check_of_suspending_that_fails_names_its_problem(tmp_path, monkeypatch) -> None:
    def fails(*_: object) -> str:
        raise checkpoint.DriverError("cuCheckpointProcessLock: 999")

    monkeypatch.setattr(suspend_check, "_suspend_and_resume", fails)
    file = tmp_path / "a" / "results.json"
    result = suspend_check.check(DeadDriver(), file)
    assert (result["good"], result["problem"]) == (False, "cuCheckpointProcessLock: 999")
    assert json.loads(file.read_text()) == {"570": result}
    assert [one.name for one in file.parent.iterdir()] == ["results.json"]
    monkeypatch.setattr(suspend_check, "_suspend_and_resume", lambda *_: "")
    assert suspend_check.check(DeadDriver(), file)["good"] is True
    assert suspend_check.check(DeadDriver(), Path(NOWHERE))["good"] is True, "a result that cannot be kept is one"


def test_a_check_without_a_driver_ends_with_its_words(monkeypatch) -> None:
    def none() -> None:
        raise checkpoint.DriverError("no driver")

    monkeypatch.setattr(checkpoint, "DriverCheckpoints", none)
    monkeypatch.setattr(sys, "argv", ["suspend_check"])
    with pytest.raises(SystemExit) as caught:
        suspend_check.main()
    assert caught.value.code == "no driver"


# ---- files -----------------------------------------------------------------------------------------------


def test_a_directory_of_settings_that_may_not_be_read(monkeypatch) -> None:
    def refused(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(UsageError) as caught:
        config._exists(Path("/home/other/c.toml"))
    assert caught.value.message == "cannot read /home/other/c.toml: Permission denied"
    assert caught.value.code == "bad_config"
    assert caught.value.hint == "set HOME or XDG_CONFIG_HOME to a directory that you may read"
    with pytest.raises(CommandNotExecutable) as caught:
        spawn._executable(Path("/home/other/x"), "x")
    assert caught.value.message == "cannot execute /home/other/x: Permission denied"


@pytest.mark.parametrize(
    ("content", "words"), [(None, "Is a directory"), (b"\xff", "can't decode byte"), (b"a = ", "Invalid value")]
)
def test_a_file_of_settings_that_cannot_be_read(tmp_path, content, words) -> None:
    path = tmp_path / "c.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        config.read_file(path)
    assert caught.value.message.startswith(f"cannot read {path}: ")
    assert caught.value.code == "bad_config"


def test_a_history_that_is_not_there_has_no_lines(tmp_path) -> None:
    past = history.History.__new__(history.History)
    past.directory = tmp_path / "none"
    assert past._files(history.JOBS, None) == []


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b"7", b"[" * 100_000, b"\xff"])
def test_a_line_of_a_history_that_is_none(line) -> None:
    assert history._parse(line) is None
    assert history._time(line) < 0


@pytest.mark.parametrize("line", [b'{"time": 1.2.3}', b'{"time": .}', b'{"time":1}', b' {"time": 1}'])
def test_a_time_that_is_none(line) -> None:
    assert history._time(line) < 0


def test_a_kernel_that_cannot_be_removed_is_still_there(tmp_path, monkeypatch) -> None:
    def refused(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    place = tmp_path / "kernels" / "ours"
    place.mkdir(parents=True)
    monkeypatch.setattr(kernelspec, "find", lambda *_: SimpleNamespace(directory=place))
    monkeypatch.setattr(kernelspec, "_check_ours", lambda _: None)
    monkeypatch.setattr(kernelspec, "_delete", refused)
    with pytest.raises(GpushareError, match=r"cannot remove .*Permission denied"):
        kernelspec.remove("ours", [tmp_path])


def test_a_report_that_cannot_be_put_in_place_leaves_nothing(tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    ending = SimpleNamespace(exit_code=0, outcome=None, reclaimed=False, signal=None, child_exit_code=0)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        exit_message.write_report(
            tmp_path / "r.json", ending=ending, command=["x"], job=None, duration=1.0, recommended=None
        )
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_that_is_gone_is_not_waited_for(tmp_path) -> None:
    before = time.monotonic()
    with pytest.raises(FileNotFoundError):
        exit_message._open_for_reader(tmp_path / "none", time.monotonic() + 60)
    assert time.monotonic() - before < 30


def test_devices_that_nvidia_has_described(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(container, "DESCRIBED", [tmp_path])
    gpus = [{"uuid": "GPU-a", "index": 0}, {"uuid": "GPU-b", "index": 1}]
    assert container._gpu_options("docker", gpus) == ['--gpus="device=GPU-a,GPU-b"']
    assert container._gpu_options("podman", gpus) == ["--device=nvidia.com/gpu=GPU-a", "--device=nvidia.com/gpu=GPU-b"]
    spec = {"kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": "GPU-b"}]}
    (tmp_path / "nvidia.json").write_text(json.dumps(spec))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "gpushare.dev-x.json").write_text(json.dumps({**spec, "devices": [{"name": "GPU-a"}]}))
    assert container._gpu_options("docker", gpus) == ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=GPU-b"]
    assert container._gpu_options("docker", gpus[1:]) == ["--device=nvidia.com/gpu=GPU-b"]
    assert [one["devices"] for one in container.nvidia_specs([tmp_path])] == [spec["devices"]]


@pytest.mark.parametrize(
    ("driver", "environ", "variables", "folders"),
    [
        ("nvidia", {"GPUSHARE_SIM": "pool=/p"}, {}, []),
        ("sim", {}, {}, [("sim", container.SOFTWARE_DRIVER)]),
        (
            "sim",
            {"GPUSHARE_SIM": "gpus=2,pool=/p/a,memory=1Gi", "OTHER": "x"},
            {"GPUSHARE_SIM": "gpus=2,pool=/p/a,memory=1Gi"},
            [("sim", container.SOFTWARE_DRIVER), ("a", "/p/a")],
        ),
    ],
)
def test_what_is_inside_of_each_container_of_a_node(driver, environ, variables, folders) -> None:
    node = SimpleNamespace(driver=driver, runtime=SimpleNamespace(directory=Path("/run/x")))
    found = container.inside(node, Path("/lib/libgpushare.so"), environ)
    assert (found.library, found.sockets, found.driver) == (
        *(Path("/lib/libgpushare.so"), Path("/run/x/containers")),
        driver,
    )
    software = {"GPUSHARE_DRIVER": "sim", "LD_LIBRARY_PATH": container.SOFTWARE_DRIVER}
    assert found.variables == (software | variables if driver == "sim" else {})
    assert [(host.name, inside) for host, inside in found.folders] == folders


def test_a_container_needs_the_library() -> None:
    with pytest.raises(UsageError) as caught:
        container.engine_command(["docker", "run", "x"], {}, {}, {"id": "j", "gpus": []}, SimpleNamespace())
    assert caught.value.message.endswith("so --mode is enforce")


# ---- programs ----------------------------------------------------------------------------------------------


def test_a_program_that_may_not_run_is_told_before_one_that_is_not_there(tmp_path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "tool").write_text("x")
    (tmp_path / "b" / "tool").mkdir()
    environ = {"PATH": f"{tmp_path}/a:{tmp_path}/b:{tmp_path}/none"}
    with pytest.raises(CommandNotExecutable) as caught:
        spawn.find_program("tool", environ)
    assert caught.value.message == f"cannot execute {tmp_path}/a/tool: permission denied", "the first of them"
    assert caught.value.hint == f"chmod +x {tmp_path}/a/tool"
    with pytest.raises(CommandNotFound, match=r"^command not found: other$"):
        spawn.find_program("other", environ)
    good = tmp_path / "c" / "tool"
    good.write_text("x")
    good.chmod(0o755)
    assert spawn.find_program("tool", {"PATH": f"{environ['PATH']}:{tmp_path}/c"}) == str(good)
    with pytest.raises(CommandNotFound, match=r"^the command is empty$"):
        spawn.find_program("", environ)
    with pytest.raises(CommandNotExecutable, match="it is a directory"):
        spawn.find_program("..", environ)


@pytest.mark.parametrize(
    ("path", "there", "code"),
    [
        ("/none/libgpushare.so", False, "not_built"),
        ("a b/lib.so", True, "bad_install_path"),
        ("a:b/lib.so", True, "bad_install_path"),
        ("a;b/lib.so", True, "bad_install_path"),
        ("ab/lib.so", True, None),
    ],
)
def test_a_library_that_cannot_be_preloaded(tmp_path, monkeypatch, path, there, code) -> None:
    library = tmp_path / path
    if there:
        library.parent.mkdir()
        library.touch()
    monkeypatch.setattr(spawn, "library", lambda turns=False: library.parent / "turns.so" if turns else library)
    if code is None:
        assert spawn.preload({"LD_PRELOAD": "x.so"}) == f"{library}:x.so"
        return
    with pytest.raises(GpushareError) as caught:
        spawn.preload({})
    assert caught.value.code == code
    assert str(library) in caught.value.message
    assert caught.value.hint.startswith("install")


def test_links_to_the_driver_that_cannot_be_made(tmp_path, monkeypatch) -> None:
    ours = spawn.software_driver_dir()
    assert spawn._software_driver(None) == str(ours)
    blocked = tmp_path / "file"
    blocked.touch()
    assert spawn._software_driver(SimpleNamespace(drivers=blocked / "drivers")) == str(ours)
    links = tmp_path / "drivers"
    assert spawn._software_driver(SimpleNamespace(drivers=links)) == str(links)
    assert (links / "libcuda.so.1").readlink() == ours / "libcuda.so.1"


def test_the_users_of_a_process(monkeypatch) -> None:
    assert process_owner.users_of(os.getpid()) == (os.getresuid()[0], os.getresuid()[2])
    assert process_owner.users_of(2**22 + 1) is None
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"Name:\tx\n")
    assert process_owner.users_of(1) is None
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"Name:\tUid:\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n")
    assert process_owner.users_of(1) == (1, 3)


@pytest.mark.parametrize(
    ("user", "may"), [(0, True), (1000, True), (1001, True), (1002, False)], ids=["root", "real", "saved", "another"]
)
def test_who_may_signal_a_process_of_two_users(user, may) -> None:
    assert process_owner.may_signal(user, (1000, 1001)) is may


def test_host_memory_of_a_process(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(host_memory, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(host_memory, "PROCESSES", tmp_path / "proc")
    own = tmp_path / "groups" / "user" / "job"
    own.mkdir(parents=True)
    (tmp_path / "proc" / "7").mkdir(parents=True)
    words = tmp_path / "proc" / "7" / "cgroup"
    assert host_memory.shortage(7, 2**40) == "", "there is no such process"
    words.write_text("1:name=x:/other\n0::/user/job\n")
    assert host_memory.shortage(7, 2**40) == "", "nothing is limited"
    for group, most, now in ((own, "max", 0), (own.parent, str(10 << 20), 4 << 20), (own.parent.parent, "x", 0)):
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{now}\n")
    assert host_memory.shortage(7, 6 << 20) == ""
    said = "its control group has 6 MiB of host memory left, and 7 MiB would go there"
    assert host_memory.shortage(7, 7 << 20) == said
    (own / "memory.max").write_text(str(3 << 20))
    (own / "memory.current").write_text(str(9 << 20))
    assert "has 0 MiB" in host_memory.shortage(7, 1 << 20)
    words.write_text("0::/user/../job\n")
    assert host_memory.shortage(7, 1 << 40) == "", "a group outside of this namespace is not looked at"
    words.write_text("1:memory:/user/job\n")
    assert host_memory.shortage(7, 1 << 40) == ""


# ---- hooks -----------------------------------------------------------------------------------------------------


@pytest.fixture
def alone() -> int:
    """What can be read when the caller has ended: it has not."""
    reading, writing = os.pipe()
    yield reading
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("true", ""),
        ("echo fine", ""),
        ("exit 3", "exit status 3"),
        ("echo one; echo ' two '; exit 4", "exit status 4: two"),
        ("echo wrong >&2; exit 1", "exit status 1: wrong"),
        ("kill -9 $$", "it was ended by signal 9"),
        ("echo x; exec >&- 2>&-; exit 5", "exit status 5: x"),
        ("yes | head -c 9000; echo; echo end; exit 6", "exit status 6: end"),
        ('test "$A" = b', ""),
    ],
)
def test_how_a_hook_ends(alone, command, said) -> None:
    assert hook_call._call(Hook(cmd=command), {"A": "b", "PATH": os.environ["PATH"]}, 60.0, alone) == said


def test_a_hook_that_has_closed_its_output_costs_nothing_while_it_goes_on(alone, monkeypatch) -> None:
    pauses = []
    monkeypatch.setattr(hook_call.time, "sleep", pauses.append)
    hook = Hook(cmd="exec >&- 2>&-; sleep 0.2; exit 5")
    assert hook_call._call(hook, dict(os.environ), 60.0, alone) == "exit status 5"
    assert len(pauses) <= 1


def test_a_hook_that_takes_too_long_ends_with_all_that_it_has_started(alone, tmp_path) -> None:
    script = f"sleep 100 & echo $! > {tmp_path}/pid; sleep 100"
    said = hook_call._call(Hook(cmd=script), dict(os.environ), 3.04, alone)
    assert said == "it had not ended after 3 s, and was killed"
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 20
    while time.monotonic() < until:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.02)
    else:
        pytest.fail("the hook's child is still there")


def test_a_hook_ends_when_nobody_waits_for_it() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    before = time.monotonic()
    assert "was killed" in hook_call._call(Hook(cmd="sleep 100"), dict(os.environ), 90.0, reading)
    assert time.monotonic() - before < 60
    os.close(reading)


def test_a_hook_that_does_not_start(alone, monkeypatch) -> None:
    def refused(*_args: object, **_more: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(hook_call.subprocess, "Popen", refused)
    assert hook_call._call(Hook(cmd="true"), {}, 5.0, alone) == "it does not start: Cannot allocate memory"


def test_the_url_of_a_hook_is_in_its_environment_only(alone, monkeypatch) -> None:
    seen = []

    def look(command: list[str], **more: object) -> None:
        seen.append((command, more["env"]))
        raise OSError(1, "no")

    environ = {"A": "b"}
    monkeypatch.setattr(hook_call.subprocess, "Popen", look)
    hook_call._call(Hook(url="http://127.0.0.1:1/secret"), environ, 5.0, alone)
    command, given = seen[0]
    assert command == [sys.executable, "-P", "-m", "gpushare.hook_url"]
    assert given == {"A": "b", "GPUSHARE_HOOK_URL": "http://127.0.0.1:1/secret"}
    assert environ == {"A": "b"}


def answering(monkeypatch, *answers: object) -> list[tuple[str, object]]:
    left, asked = list(answers), []

    def request(_address: str, call: Call, body: object, _until: float) -> bytes:
        asked.append((call.path, body))
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return json.dumps(found).encode()

    monkeypatch.setattr(hook_url, "_request", request)
    monkeypatch.setattr(hook_url, "PAUSE", 0.01)
    return asked


def test_an_answer_that_is_waited_for(monkeypatch) -> None:
    call = Call("/asleep", method="GET", until=("asleep", True))
    asked = answering(monkeypatch, {"asleep": False}, {"asleep": False}, {"asleep": True})
    hook_url._repeat("http://x", call, None, time.monotonic() + 60)
    assert len(asked) == 3
    answering(monkeypatch, {"asleep": False})
    with pytest.raises(hook_url.Failed, match=r"^GET /asleep: asleep is not true in time$"):
        hook_url._repeat("http://x", call, None, time.monotonic() + 0.05)
    answering(monkeypatch, {"asleep": "yes"})
    with pytest.raises(hook_url.Failed, match=r"^GET /asleep: asleep is 'yes'$"):
        hook_url._repeat("http://x", call, None, time.monotonic() + 60)


def test_a_request_is_repeated_where_it_may_be(monkeypatch) -> None:
    failed = hook_url.Failed("not now")
    asked = answering(monkeypatch, failed, failed, {})
    hook_url._repeat("http://x", Call("/a", again=True), None, time.monotonic() + 60)
    assert len(asked) == 3
    asked = answering(monkeypatch, failed)
    with pytest.raises(hook_url.Failed, match="not now"):
        hook_url._repeat("http://x", Call("/a"), None, time.monotonic() + 60)
    assert len(asked) == 1
    with pytest.raises(hook_url.Failed, match="not now"):
        hook_url._repeat("http://x", Call("/a", again=True), None, time.monotonic() + 0.05)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (urllib.error.URLError("Connection refused"), "POST /a: Connection refused"),
        (TimeoutError("timed out"), "POST /a: timed out"),
        (ValueError("unknown url type"), "POST /a: unknown url type"),
    ],
)
def test_a_server_that_does_not_answer(monkeypatch, error, words) -> None:
    def fails(*_args: object, **_more: object) -> None:
        raise error

    opener = SimpleNamespace(open=fails)
    monkeypatch.setattr(hook_url.urllib.request, "build_opener", lambda *_: opener)
    with pytest.raises(hook_url.Failed) as caught:
        hook_url._request("http://x", Call("/a"), {}, time.monotonic() + 5)
    assert str(caught.value) == words


# ---- texts, settings, answers ---------------------------------------------------------------------------------


def test_a_text_is_shown_to_a_reader_only() -> None:
    for shown in (str, "{}".format):
        with pytest.raises(TypeError, match=r"needs a reader: use Viewer.words"):
            shown(reasons.Text(("a",)))


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("0", False), ("YES", True), ("Off", False), ("", False), ("2", None)]
)
def test_a_setting_that_is_yes_or_no(text, value) -> None:
    name = "GPUSHARE_REQUIRE_DAEMON"
    settings = env.Settings({}, {name: text})
    if value is not None:
        assert settings.flag(name) is value
        return
    with pytest.raises(UsageError) as caught:
        settings.flag(name)
    assert f"{text!r} is neither 1 nor 0" in caught.value.render()
    assert caught.value.code == "bad_choice"
    assert name in caught.value.render()


def test_a_setting_reads_as_its_text() -> None:
    assert f"{env.Setting('8Gi', 'here')}" == "8Gi"


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff"])
def test_an_answer_that_is_no_json(data) -> None:
    with pytest.raises(GpushareError) as caught:
        clients.decode(data)
    assert caught.value.message == unixhttp.garbage(data).message


def test_words_for_a_program_that_was_not_among_the_arguments() -> None:
    assert mistakes._program_meant("train", ["run", "other"]) is None


# ---- without a daemon -------------------------------------------------------------------------------------------


def away(*_: object) -> None:
    raise GpushareError("the daemon is away")


def test_stopping_from_the_strip_without_a_daemon_says_why(monkeypatch) -> None:
    monkeypatch.setattr(top, "find", away)
    assert top._stop({"id": "j"}) == "the daemon is away"


@pytest.mark.parametrize("error", [GpushareError("away"), KeyError("no name")])
def test_completion_without_a_service_offers_nothing(monkeypatch, error) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr("gpushare.cluster.client.find", fails)
    assert complete._ask_service(lambda client: client.status()) is None
    monkeypatch.setattr("gpushare.cluster.client.find", lambda: None)
    assert complete._ask_service(lambda client: client.status()) is None
    found = SimpleNamespace(timeout=60.0)
    monkeypatch.setattr("gpushare.cluster.client.find", lambda: found)
    assert complete._ask_service(lambda client: client.timeout) == complete.ANSWER_WITHIN


def test_completion_of_kernels(monkeypatch) -> None:
    kernels = [SimpleNamespace(name=name, display_name=name.upper()) for name in ("ours", "other")]
    monkeypatch.setattr(kernelspec, "installed", lambda _: kernels)
    found = [(one.value, one.help) for one in complete.kernels(None, None, "o")]
    assert found == [("ours", "OURS"), ("other", "OTHER")]
    assert [one.value for one in complete.kernels(None, None, "ou")] == ["ours"]


def test_no_history_no_words_about_the_kernel_before(monkeypatch) -> None:
    monkeypatch.setattr(previous_kernel, "connection_file", lambda: "k.json")
    monkeypatch.setattr(previous_kernel, "notebook_name", lambda _: None)
    monkeypatch.setattr(previous_kernel.offline_history, "ask", away)
    assert previous_kernel.previous_end() is None
    monkeypatch.setattr(previous_kernel, "connection_file", lambda: None)
    assert previous_kernel.previous_end() is None


def test_a_notebook_without_a_past(monkeypatch) -> None:
    client = SimpleNamespace(history=away)
    assert magic._past(client, {"id": "j"}) is None
    asked = []

    def past(since: float, until: float, step: float, job: str) -> dict:
        asked.append((round(until - since, 3), step, job))
        return {"series": [{"gpu": "0", "points": [1, 2]}]}

    found = magic._past(SimpleNamespace(history=past), {"id": "j"})
    assert asked == [(magic.MINUTES * 60, 1.0, "j")]
    assert found.until - found.since == pytest.approx(magic.MINUTES * 60)
    assert found.points == {"0": [1, 2]}


def test_a_notebook_that_gpushare_is_not_in(monkeypatch, capsys) -> None:
    monkeypatch.setattr(magic, "presence", lambda: magic.Presence.ABSENT)
    with pytest.raises(GpushareError, match=r"^not in this process"):
        magic._client()
    for line in ("explain", "set 12Gi", "set --limit 12Gi", ""):
        magic.magic(line)
        assert "not in this process" in capsys.readouterr().out
    magic.magic("sett")
    assert "%gpushare sett is not understood" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("explain", ["explain", "id"]),
        ("set 12Gi", ["set", "id", "--limit", "12Gi"]),
        ("set --request 4Gi", ["set", "id", "--request", "4Gi"]),
        ("set --limit=9Gi --request 4Gi", ["set", "id", "--limit=9Gi", "--request", "4Gi"]),
    ],
)
def test_a_notebooks_words_are_those_of_the_command_line(monkeypatch, line, words) -> None:
    seen = []
    monkeypatch.setattr(magic, "_client", lambda: None)
    monkeypatch.setattr(magic, "_job", lambda _: {"id": "id"})
    monkeypatch.setattr("gpushare.cli.cli.main", lambda *args, **more: seen.append((args, more)))
    magic.magic(line)
    assert seen == [((words,), {"prog_name": "gpushare", "standalone_mode": False})]


# ---- SIGTERM of a notebook -----------------------------------------------------------------------------------------


@pytest.fixture
def quiet():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("quiet")
def test_sigterm_is_excused_or_passed_on(monkeypatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: seen.append((pid, number)))
    excuse = [True]
    signal.signal(signal.SIGTERM, lambda number, _frame: seen.append(number))
    handler = sigterm.Handler(lambda: excuse[0])
    assert handler.install() is True
    handler(signal.SIGTERM, None)
    assert seen == []
    excuse[0] = False
    handler(signal.SIGTERM, None)
    assert seen == [signal.SIGTERM]
    excuse[0] = True
    handler.remove()
    handler(signal.SIGTERM, None)
    assert seen == [signal.SIGTERM] * 2, "it is not installed any more"
    handler.remove()
    assert signal.getsignal(signal.SIGTERM) is not handler


@pytest.mark.usefixtures("quiet")
def test_sigterm_ends_a_kernel_that_had_no_handler(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(os, "kill", lambda pid, number: seen.append((pid, number, signal.getsignal(number))))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    handler = sigterm.Handler(lambda: False)
    handler.install()
    handler(signal.SIGTERM, None)
    assert seen == [(os.getpid(), signal.SIGTERM, signal.SIG_DFL)]


@pytest.mark.usefixtures("quiet")
def test_sigterm_that_is_ignored_stays_so(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(os, "kill", lambda *args: seen.append(args))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    handler = sigterm.Handler(lambda: False)
    handler.install()
    handler(signal.SIGTERM, None)
    assert seen == []
    handler.remove()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_a_handler_that_is_not_pythons_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("it was replaced"))
    handler = sigterm.Handler(lambda: True)
    assert handler.install() is False
    handler.remove()
