"""What `gpushare doctor` finds of the daemon, variables, a container and other libraries, and how to repair it."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare import __version__, doctor
from gpushare.cli import doctor as command
from gpushare.cli import main
from gpushare.doctor import daemon, environment, finding
from gpushare.doctor.environment import OTHER_INTERPOSERS, PRELOAD_FILE
from gpushare.doctor.finding import Surroundings
from gpushare.errors import DaemonUnreachable, GpushareError, NotPermitted

MIB = 2**20


# ---- the daemon ---------------------------------------------------------------------------------------


def where(version: str = __version__, scope: str = "user", named: Any = None, error: Exception | None = None) -> Any:
    """A node with a daemon, or the error in its place."""

    class Found:
        environ: dict[str, str] = {}  # noqa: RUF012
        settings = SimpleNamespace(find=lambda name: named if name == "GPUSHARE_SOCKET" else None)
        told = {"version": version, "scope": scope, "pid": 7, "protocol": 3}  # noqa: RUF012
        client = SimpleNamespace(version=lambda: Found.told)

        @property
        def node(self) -> Any:
            if error is not None:
                raise error
            return SimpleNamespace(runtime=SimpleNamespace(api_socket="/x/api.sock"))

    return Found()


SOCKET = SimpleNamespace(source="GPUSHARE_SOCKET=/x", name="GPUSHARE_SOCKET")
IN_A_FILE = SimpleNamespace(source="socket in /etc/gpushare.toml", name="")
AWAY = DaemonUnreachable("nobody answers", code="no_daemon", hint="start one")
OTHER = DaemonUnreachable("it speaks 4", code="other_protocol", hint="use one version")
HANGS = DaemonUnreachable("it hangs", code="timed_out", hint="wait")
STOP, RESTART = ("gpushare daemon stop",), ("sudo systemctl restart gpushared",)


@pytest.mark.parametrize(
    ("found", "system", "expected"),
    [
        (where(), False, ("ok", f"/x/api.sock (user, pid 7), version {__version__}, protocol 3", None, ())),
        (
            where("0.0.1"),
            False,
            ("warn", f"/x/api.sock (user, pid 7) is version 0.0.1, this command {__version__}", None, STOP),
        ),
        (
            where("0.0.1", "system"),
            False,
            ("warn", f"/x/api.sock (system, pid 7) is version 0.0.1, this command {__version__}", None, RESTART),
        ),
        (where(error=AWAY), False, ("skip", "none runs; `gpushare run` starts one for its job", None, ())),
        (where(error=OTHER), False, ("fail", "it speaks 4", "use one version", STOP)),
        (where(error=OTHER), True, ("fail", "it speaks 4", "use one version", RESTART)),
        (where(error=HANGS), True, ("fail", "it hangs", "wait", ())),
        (
            where(error=AWAY, named=SOCKET),
            False,
            (
                "fail",
                "nobody answers (GPUSHARE_SOCKET=/x)",
                "unset GPUSHARE_SOCKET, or start that daemon",
                ("unset GPUSHARE_SOCKET",),
            ),
        ),
        (
            where(error=OTHER, named=IN_A_FILE),
            False,
            ("fail", "it speaks 4 (socket in /etc/gpushare.toml)", "unset GPUSHARE_SOCKET, or start that daemon", ()),
        ),
    ],
)
def test_the_daemon(monkeypatch, found, system, expected):
    monkeypatch.setattr(daemon.locate, "foreign_software_gpus", lambda node, environ: None)
    monkeypatch.setattr(daemon, "is_there", lambda path: system)
    told = daemon.check_daemon(found)
    assert (told.state, told.detail, told.hint, told.fix) == expected


def test_a_daemon_of_others_with_software_gpus(monkeypatch):
    monkeypatch.setattr(daemon.locate, "foreign_software_gpus", lambda node, environ: DaemonUnreachable("it has none"))
    told = daemon.check_daemon(where())
    assert (told.state, told.detail) == ("warn", "it has none; you have none of your own") and told.hint


def gpus(*ailments: tuple[str, str], unmanaged: int = 0, processes: Any = ()) -> list[Any]:
    found = [{"state": state, "text": f"it is {state}", "hint": hint} for state, hint in ailments]
    return [
        {"uuid": "GPU-0", "index": 0, "health": {"ailments": []}, "unmanaged": 0, "unmanaged_processes": []},
        {
            "uuid": "GPU-1",
            "index": 1,
            "health": {"ailments": found},
            "unmanaged": unmanaged,
            "unmanaged_processes": list(processes),
        },
    ]


def of(those: list[Any], scope: str = "user") -> Any:
    client = SimpleNamespace(status=lambda: {"gpus": those}, version=lambda: {"scope": scope})
    return SimpleNamespace(client=client)


RESET = "run nvidia-smi --gpu-reset"
SMI = "sudo nvidia-smi --gpu-reset -i GPU-1"


@pytest.mark.parametrize(
    ("those", "scope", "expected"),
    [
        (gpus(), "user", ("ok", "2 GPUs are well", None, ())),
        (gpus()[:1], "user", ("ok", "1 GPU is well", None, ())),
        (gpus(("degraded", "watch it")), "user", ("warn", "GPU 1 is degraded: it is degraded", "watch it", ())),
        (
            gpus(("degraded", "watch it"), ("sick", "watch it")),
            "user",
            ("fail", "GPU 1 is degraded: it is degraded; GPU 1 is sick: it is sick", "watch it", ()),
        ),
        (gpus(("sick", RESET)), "user", ("fail", "GPU 1 is sick: it is sick", RESET, ("gpushare daemon stop", SMI))),
        (
            gpus(("sick", RESET), ("lost", "boot")),
            "system",
            (
                "fail",
                "GPU 1 is sick: it is sick; GPU 1 is lost: it is lost",
                f"{RESET}; boot",
                ("sudo systemctl stop gpushared", SMI, "sudo systemctl start gpushared"),
            ),
        ),
    ],
)
def test_health(those, scope, expected):
    told = daemon.check_health(of(those, scope))
    assert (told.state, told.detail, told.hint, told.fix) == expected


def programs(count: int, **more: Any) -> list[Any]:
    return [{"command": "x", "pid": number, "job": None, "reason": "", **more} for number in range(count)]


@pytest.mark.parametrize(
    ("unmanaged", "count", "detail"),
    [
        (256 * MIB, 1, "none"),
        (256 * MIB + 1, 0, "256.0 MiB on GPU 1"),
        (512 * MIB, 1, "512.0 MiB on GPU 1 (x[0])"),
        (512 * MIB, 3, "512.0 MiB on GPU 1 (x[0], x[1], x[2])"),
        (512 * MIB, 4, "512.0 MiB on GPU 1 (x[0], x[1], x[2], ...)"),
    ],
)
def test_memory_of_others(unmanaged, count, detail):
    told = daemon.check_unmanaged(of(gpus(unmanaged=unmanaged, processes=programs(count))))
    assert (told.state, told.detail) == ("ok" if detail == "none" else "warn", detail)


@pytest.mark.parametrize(
    ("more", "detail"),
    [
        ({}, "none"),
        ({"job": "a1", "reason": "observed"}, "none"),
        ({"job": "a1", "reason": "static"}, f"pid 0 (x) of job a1: {daemon.REASONS['static']}"),
    ],
)
def test_programs_without_their_jobs_budget(more, detail):
    those = gpus(processes=[*programs(1, **more), *programs(1, **more)])
    told = daemon.check_escaped(of(those))
    assert (told.state, told.detail) == ("ok" if detail == "none" else "warn", detail), "each is told once"


# ---- variables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "state", "words", "fix"),
    [
        ({}, "ok", "no conflicts", ()),
        ({"GPUSHARE_LIMIT": "4Gi"}, "ok", "no conflicts", ()),
        ({"GPUSHARE_LIMIT": "4G", "X": "1"}, "fail", "GPUSHARE_LIMIT", ("unset GPUSHARE_LIMIT",)),
        ({"GPUSHARE_PRIORITY": "x"}, "fail", "GPUSHARE_PRIORITY", ("unset GPUSHARE_PRIORITY",)),
        ({"GPUSHARE_GRACE": "x"}, "fail", "GPUSHARE_GRACE", ("unset GPUSHARE_GRACE",)),
        *(
            ({name: "x"}, "fail", name, (f"unset {name}",))
            for name in ("GPUSHARE_DRIVER", "GPUSHARE_VISIBLE", "GPUSHARE_LOG", "GPUSHARE_MODE")
        ),
        (
            {"GPUSHARE_LIMITS": "4Gi", "GPUSHARE_B": "", "OTHER": "1"},
            "warn",
            "GPUSHARE_LIMITS",
            ("unset GPUSHARE_B", "unset GPUSHARE_LIMITS"),
        ),
    ],
)
def test_variables(environ, state, words, fix):
    nowhere = {"XDG_CONFIG_HOME": "/nowhere", **environ}
    if environ.get("GPUSHARE_LIMIT") == "4G":
        nowhere["GPUSHARE_LIMIT"] = "four"
    told = environment.check_variables(Surroundings(nowhere))
    assert (told.state, told.fix) == (state, fix) and words in told.detail


# ---- other libraries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "file", "runs", "detail", "fix"),
    [
        ({}, "", False, "none", ()),
        ({"LD_PRELOAD": "/x/libother.so"}, "", False, "none", ()),
        ({"LD_PRELOAD": "/x/libvgpu.so"}, "", False, "found libvgpu.so", ("unset LD_PRELOAD",)),
        ({}, "/x/libvgpu.so\n", False, "found libvgpu.so", (rf"sudo sed -i '/libvgpu\.so/d' {PRELOAD_FILE}",)),
        (
            {"LD_PRELOAD": "/x/libgemhook.so"},
            "/x/libvgpu.so\n",
            False,
            "found libvgpu.so, libgemhook.so",
            ("unset LD_PRELOAD", rf"sudo sed -i '/libvgpu\.so/d' {PRELOAD_FILE}"),
        ),
        ({}, "", True, "found MPS", ("echo quit | nvidia-cuda-mps-control",)),
        ({"CUDA_MPS_PIPE_DIRECTORY": ""}, "", False, "found MPS", ("unset CUDA_MPS_PIPE_DIRECTORY",)),
        (
            {"LD_PRELOAD": "libnvshare.so", "CUDA_MPS_PIPE_DIRECTORY": ""},
            "",
            True,
            "found libnvshare.so, MPS",
            ("unset LD_PRELOAD", "echo quit | nvidia-cuda-mps-control", "unset CUDA_MPS_PIPE_DIRECTORY"),
        ),
    ],
)
def test_other_libraries(monkeypatch, environ, file, runs, detail, fix):
    monkeypatch.setattr(environment, "read", lambda path: file if path == PRELOAD_FILE else "")
    monkeypatch.setattr(environment, "_runs", lambda name: runs and name == "nvidia-cuda-mps")
    told = environment.check_interposers(SimpleNamespace(environ=environ))  # type: ignore[arg-type]
    assert (told.state, told.detail, told.fix) == ("ok" if detail == "none" else "warn", detail, fix)
    assert len(OTHER_INTERPOSERS) == len(set(OTHER_INTERPOSERS))


def test_a_program_is_known_by_fifteen_letters_of_its_name(monkeypatch):
    monkeypatch.setattr(environment, "Path", lambda root: SimpleNamespace(glob=lambda which: ["/proc/7", "/proc/8"]))
    monkeypatch.setattr(environment, "read", lambda path: {"/proc/8/comm": "nvidia-cuda-mps\n"}.get(path, "x\n"))
    assert environment._runs("nvidia-cuda-mps-control") and not environment._runs("nvidia-smi")


# ---- a container ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marks", "environ", "inside"),
    [
        ((), {}, False),
        (("/.dockerenv",), {}, True),
        (("/run/.containerenv",), {}, True),
        ((), {"KUBERNETES_SERVICE_HOST": ""}, True),
        ((), {"container": "podman"}, True),
    ],
)
@pytest.mark.parametrize("mounted", [True, False])
def test_a_container(monkeypatch, marks, environ, inside, mounted):
    monkeypatch.setattr(environment, "Path", lambda path: SimpleNamespace(exists=lambda: path in marks))
    monkeypatch.setattr(environment, "is_there", lambda path: mounted)
    told = environment.check_container(SimpleNamespace(environ=environ))  # type: ignore[arg-type]
    if not inside:
        assert (told.state, told.detail) == ("ok", "not in a container")
    elif mounted:
        assert (told.state, told.detail) == ("ok", "in a container, with the node's daemon mounted")
    else:
        assert told.state == "warn" and "sees only the jobs and processes in here" in told.detail


@pytest.mark.parametrize(
    ("made", "state", "fix"),
    [
        (None, "ok", None),
        (lambda path: path.mkdir(mode=0o700), "ok", None),
        (lambda path: path.mkdir(mode=0o755) or path.chmod(0o755), "fail", "chmod 700 {}"),
        (lambda path: path.touch(), "fail", "rm {}"),
        (lambda path: path.symlink_to("/nowhere"), "fail", "rm {}"),
    ],
)
@pytest.mark.parametrize("driver", ["nvidia", "sim"])
def test_the_users_own_directory(tmp_path, made, state, fix, driver):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    directory = daemon.user_dir(driver, environ)
    if made is not None:
        made(directory)
    told = daemon.check_runtime_dir(SimpleNamespace(environ=environ))  # type: ignore[arg-type]
    assert (told.state, told.fix) == (state, () if fix is None else (fix.format(directory),))
    assert str(directory if fix else tmp_path) in told.detail


def test_a_directory_of_somebody_else_is_left_to_them(tmp_path, monkeypatch):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    daemon.user_dir("nvidia", environ).mkdir(mode=0o700)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    told = daemon.check_runtime_dir(SimpleNamespace(environ=environ))  # type: ignore[arg-type]
    assert (told.state, told.fix) == ("fail", ('export XDG_RUNTIME_DIR="$(mktemp -d)"',))


def test_a_check_that_may_not_look_is_skipped_and_the_others_go_on():
    def probe(error: Exception | None) -> Any:
        def probe(_surroundings: object) -> finding.Finding:
            if error is not None:
                raise error
            return finding.Finding("warn", "odd")

        return probe

    errors = [
        NotPermitted("you may not", hint="ask root"),
        NotPermitted("you may not"),
        AWAY,
        GpushareError("it broke", hint="mend it"),
        GpushareError("it broke"),
        ValueError("a bug"),
        None,
    ]
    checks = [finding.Check(str(number), "", probe(error), "of the check") for number, error in enumerate(errors)]
    assert [(one.state, one.detail, one.hint or "") for _, one in doctor.examine(None, checks)] == [
        ("skip", "you may not", "ask root"),
        ("skip", "you may not", ""),
        ("skip", "nobody answers", ""),
        ("fail", "it broke", "mend it"),
        ("fail", "it broke", "of the check"),
        ("fail", "the check itself failed: ValueError: a bug", "of the check"),
        ("warn", "odd", "of the check"),
    ]


# ---- what is looked at ------------------------------------------------------------------------------------------


def test_each_thing_is_looked_at_once(monkeypatch):
    asked = []
    monkeypatch.setattr(finding, "ask_nvml", lambda: asked.append("nvml") or ("570.1", 2))
    node = SimpleNamespace(client=lambda within: asked.append(within) or "client")
    monkeypatch.setattr(finding.locate, "find", lambda settings: asked.append("node") or node)
    one = Surroundings({"XDG_CONFIG_HOME": "/nowhere"})
    for _ in range(2):
        assert (one.driver_version, one.client, one.node) == ("570.1", "client", node)
    assert asked == ["nvml", "node", 5.0]
    assert Surroundings().environ is os.environ


@pytest.mark.parametrize(
    ("words", "looks_at"),
    [
        ([], "machine"),
        (["--cluster"], "cluster None None"),
        (["--context", "c"], "cluster None c"),
        (["--kubeconfig", "/k"], "cluster /k None"),
    ],
)
def test_an_access_to_a_cluster_means_the_cluster(monkeypatch, capsys, words, looks_at):
    looked = []
    monkeypatch.setattr(command, "_of_machine", lambda: looked.append("machine") or [])
    monkeypatch.setattr(
        command, "_of_cluster", lambda kubeconfig, context: looked.append(f"cluster {kubeconfig} {context}") or []
    )
    assert main(["doctor", *words]) == 0 and looked == [looks_at]
    assert main(["doctor", "--fix-hints", *words]) == 0 and capsys.readouterr().err == "nothing to repair\n"


FOUND = [
    (finding.Check("GS01", "driver", None, ""), finding.Finding("ok", "well")),  # type: ignore[arg-type]
    (finding.Check("GS02", "library", None, ""), finding.Finding("warn", "old", "renew it", ("a", "b"))),  # type: ignore[arg-type]
    (finding.Check("GS03", "daemon", None, ""), finding.Finding("skip", "away")),  # type: ignore[arg-type]
    (finding.Check("GS04", "health", None, ""), finding.Finding("fail", "it\nfails", "mend\nit")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("count", "status"), [(1, 0), (3, 0), (4, 1)])
def test_what_was_found_is_told_in_three_forms(monkeypatch, capsys, count, status):
    monkeypatch.setattr(command, "_of_machine", lambda: FOUND[:count])
    assert main(["doctor"]) == status
    text = capsys.readouterr().out
    assert [line.split()[:2] for line in text.splitlines()[1 : count + 1]] == [
        [check.id, one.state] for check, one in FOUND[:count]
    ]
    hints = ["hint: GS02: renew it"] * (count > 1) + ["hint: GS04: mend", "it"] * (count > 3)
    assert text.splitlines()[count + 1 :] == ([""] if hints else []) + hints
    assert main(["doctor", "--fix-hints"]) == status
    fixes = ["# GS02 warn, library: old", "a", "b"] * (count > 1)
    fixes += ["# GS04 fail, health: it fails", "#   no command repairs it: mend it"] * (count > 3)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == fixes and bool(shown.err) is not bool(fixes)
    assert main(["doctor", "--json"]) == status
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert len(checks) == count and checks[0] == {
        **{"id": "GS01", "title": "driver", "state": "ok", "detail": "well", "hint": None, "fix": []}
    }
