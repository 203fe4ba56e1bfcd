"""The core without hooks, linked into ordinary programs: parsers, options, the table, client and account."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from pathlib import Path

import pytest
from shim_tree import ROOT, SHIM

from gpushare.env import Settings
from gpushare.errors import GpushareError
from gpushare.quantity import Kind, parse_duration

SOURCES = ("message", "quantity", "options", "table", "packet", "client", "gate", "account")
CORE = (
    *(str(SHIM / "preload" / f"{name}.c") for name in SOURCES),
    str(SHIM.parent / "tests" / "shim" / "programs" / "core_driver.c"),
)
ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREAD = ("-fsanitize=thread",)


def sanitized(compile_c, name, flags):
    kind = "tsan" if flags is THREAD else "asan"
    return compile_c(
        f"{name}.c", *flags, "-Wno-tsan" if flags is THREAD else "-g", sources=CORE, target=f"{name}-{kind}"
    )


def run(program, environ=None, text=None, arguments=()):
    # A thread sanitizer of this age needs addresses that are not randomised as far as new kernels do it.
    command = ["setarch", "-R", str(program)] if "tsan" in program.name else [str(program)]
    return subprocess.run(
        [*command, *arguments], env=environ or {}, input=text, capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def parser(compile_c):
    return sanitized(compile_c, "core_quantity", ADDRESS)


def parse(parser, questions):
    lines = [f"{dialect} x{text.encode().hex()}" for dialect, text in questions]
    done = run(parser, text="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    return [(kind, int(value)) for kind, value in (line.split() for line in done.stdout.splitlines())]


def test_quantities_as_in_the_shared_vectors(parser):
    vectors = json.loads((ROOT / "tests/vectors/quantities.json").read_text())
    answers = parse(parser, [(one["dialect"], one["text"]) for one in vectors])
    wrong = [
        (one, answer) for one, answer in zip(vectors, answers, strict=True) if answer != (one["kind"], one["value"])
    ]
    assert len(vectors) > 200 and wrong == []


def test_quantities_as_in_python_whatever_the_text(parser):
    from gpushare.quantity import Quantity

    chance = random.Random(7)
    pieces = [
        "0",
        "1",
        "9",
        "4096",
        "0.25",
        ".",
        "e",
        "E",
        "+",
        "-",
        "%",
        "Gi",
        "G",
        "g",
        "m",
        "Mi",
        "MiB",
        "k",
        " ",
        "max",
        "none",
        "12345678",
        "5",
    ]
    questions = [
        (chance.choice(["native", "runai", "mib", "hami"]), "".join(chance.choices(pieces, k=chance.randint(1, 5))))
        for _ in range(20000)
    ]
    wrong = []
    for (dialect, text), answer in zip(questions, parse(parser, questions), strict=True):
        try:
            quantity = Quantity.parse(text, dialect)
            expected = (quantity.kind.value, quantity.value)
        except GpushareError:
            expected = ("error", 0)
        if answer != expected:
            wrong.append((dialect, text, answer, expected))
    assert wrong == []


def test_durations_as_in_python(parser):
    texts = [
        "5s",
        "500ms",
        "2m",
        "1.5h",
        "10",
        "0",
        "1d",
        "3min",
        "",
        "5x",
        "-1s",
        ".5s",
        "5 s",
        "1e3",
        "0.001s",
        "4294967295ms",
        *("4294967296ms", "4294967294ms", "49d", "50d", "1min", "2 min", "5\tm", "1 d", "5  ms", " 5s ", "5.s", "5."),
        *(
            "999999999s",
            "1000000000s",
            "0.123456789s",
            "0.1234567891s",
            "0.0009s",
            "1.9999ms",
            "ms",
            "s",
            "5 x",
            "5sec",
        ),
        *("999999999.5s", "1000000000.5s", "5 ", "5.5\t ", " "),
        *("000000001s", "0000000001s", "1.5", "1.5d", "0ms", "1..5s", "1H", "5 s s"),
    ]
    expected = []
    for text in texts:
        try:
            expected.append(("ms", min(int(parse_duration(text) * 1000 + 1e-6), 2**32 - 1)))
        except GpushareError:
            expected.append(("error", 0))
    assert parse(parser, [("duration", text) for text in texts]) == expected


@pytest.fixture(scope="module")
def options(compile_c):
    program = sanitized(compile_c, "core_options", ADDRESS)

    def read(*arguments, **environ):
        done = run(program, environ, arguments=arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout, strict=False), done.stderr

    return read


KINDS = {Kind.BYTES: 1, Kind.SHARE: 2, Kind.MAX: 3, Kind.NONE: 1}


def expected_budget(environ):
    budget, _request, _limit = Settings(environ=environ).budget()
    limit = budget.limit
    return [[KINDS[budget.request.kind], budget.request.value], [KINDS[limit.kind], limit.value]]


ENVIRONMENTS = [
    {"GPUSHARE_LIMIT": "4Gi"},
    {"GPUSHARE_REQUEST": "4Gi"},
    {"GPUSHARE_REQUEST": "25%", "GPUSHARE_LIMIT": "max"},
    {"GPUSHARE_REQUEST": "none"},
    {"GPUSHARE_REQUEST": "none", "GPUSHARE_LIMIT": "0.5"},
    {"GPUSHARE_LIMIT": "none"},
    {"RUNAI_GPU_MEMORY_LIMIT": "0.25"},
    {"RUNAI_GPU_MEMORY_LIMIT": "0.25", "NVIDIA_GPU_MEMORY_REQUEST": "2048"},
    {"NVIDIA_GPU_MEMORY_LIMIT": "4096"},
    {"NVIDIA_GPU_MEMORY_LIMIT": "4096", "RUNAI_GPU_MEMORY_LIMIT": "0.5"},
    {"CUDA_DEVICE_MEMORY_LIMIT": "3000m"},
    {"CUDA_DEVICE_MEMORY_LIMIT_0": "4g", "CUDA_DEVICE_MEMORY_LIMIT_1": "3g"},
    {"CUDA_DEVICE_MEMORY_LIMIT": "5g", "CUDA_DEVICE_MEMORY_LIMIT_1": "3g"},
    {"CUDA_DEVICE_MEMORY_LIMIT": "0", "CUDA_DEVICE_MEMORY_LIMIT_1": "3g"},
    {"GPUSHARE_LIMIT": "", "NVIDIA_GPU_MEMORY_LIMIT": "4096"},
    {"GPUSHARE_LIMIT": " 4Gi "},
]


@pytest.mark.parametrize("environ", ENVIRONMENTS, ids=lambda environ: ",".join(map("=".join, environ.items())))
def test_budgets_as_in_python(options, environ):
    found, _ = options(**environ)
    assert found["active"] == 1
    assert [found["request"], found["limit"]] == expected_budget(environ)


def test_a_mode_that_is_none_is_said_and_the_budget_holds(options):
    found, err = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_MODE="watch")
    assert found["active"] == 1 and "GPUSHARE_MODE" in err and "enforce, observe, off" in err
    assert options(GPUSHARE_LIMIT="4Gi", GPUSHARE_MODE="enforce") == options(GPUSHARE_LIMIT="4Gi")
    found, err = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_MODE="offline")
    assert found["active"] == 1 and "GPUSHARE_MODE" in err


@pytest.mark.parametrize(
    "environ",
    [
        *({}, {"CUDA_DEVICE_MEMORY_LIMIT": "0m"}, {"GPUSHARE_NAME": "x"}, {"GPUSHARE_LIMIT": ""}),
        *({"GPUSHARE_LIMIT": "4Gi", "GPUSHARE_MODE": mode} for mode in ("observe", "off", " off ")),
    ],
)
def test_without_a_budget_it_is_inert(options, environ):
    found, err = options(**environ)
    assert found["active"] == 0 and err == ""


def test_a_program_that_has_cleared_its_environment_has_no_budget(options):
    found, err = options("cleared", GPUSHARE_LIMIT="4Gi", GPUSHARE_JOB="ab")
    assert (found["active"], found["limit"], found["request"], err) == (0, [0, 0], [0, 0], "")


def test_invalid_values_are_said_and_the_next_source_counts(options):
    found, err = options(GPUSHARE_LIMIT="4g", NVIDIA_GPU_MEMORY_LIMIT="4096")
    assert found["limit"] == [1, 4 * 2**30]
    assert err.startswith("gpushare: GPUSHARE_LIMIT=4g: not an amount of memory")
    found, err = options(GPUSHARE_REQUEST="8Gi", GPUSHARE_LIMIT="4Gi")
    assert found["request"] == found["limit"] == [1, 4 * 2**30]
    assert "the limit counts for both" in err
    found, err = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_LIMT="5Gi")
    assert "GPUSHARE_LIMT=5Gi: there is no such variable" in err
    found, err = options(GPUSHARE_LIMIT="4g", GPUSHARE_JOB="0123456789abcdef")
    assert found["job"] == 0x0123456789ABCDEF and err == "", "gpushare run has said it already"


def test_the_other_variables(options):
    found, err = options(
        GPUSHARE_LIMIT="4Gi",
        GPUSHARE_PRIORITY="-7",
        GPUSHARE_GRACE="250ms",
        GPUSHARE_VISIBLE="request",
        GPUSHARE_LOG="debug",
        GPUSHARE_NAME="x" * 100,
        GPUSHARE_SOCKET="/run/other/api.sock",
    )
    assert (found["priority"], found["grace"], found["visible_request"], found["level"]) == (-7, 250, 1, 3)
    assert found["name"] == "x" * 63 and found["sockets"] == ["/run/other/shim.sock", ""] and err == ""
    found, err = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_GRACE="0s")
    assert found["grace"] == 1 and err == "", "no grace is not the daemon's own: that would be 0"
    for wrong in ("high", "7high", "7 7", "+", "2147483648"):
        found, err = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_PRIORITY=wrong)
        assert found["priority"] == 0 and "GPUSHARE_PRIORITY: not a whole number" in err
    found, err = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_PRIORITY="+2147483647")
    assert found["priority"] == 2**31 - 1 and err == ""


def test_what_is_not_set_is_the_daemons_to_choose(options):
    found, err = options(GPUSHARE_LIMIT="4Gi")
    unset = ("job", "priority", "grace", "visible_request", "steps", "min_run", "devices", "software")
    assert [found[name] for name in unset] == [0, 0, 0, 0, 0, 0, "", 0]
    assert (found["level"], found["name"], err) == (1, "core_options-asan", ""), "warnings, and the program's name"


TRIM, TERM, KILL, SUSPEND, HOOK = 1, 2, 4, 8, 16


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        *[("kill", KILL), ("trim", TRIM | KILL), ("term,kill", TERM | KILL), ("TRIM,Term", TRIM | TERM | KILL)],
        *[("suspend", SUSPEND | KILL), ("hook,suspend", HOOK | SUSPEND | KILL), (" trim , kill ", TRIM | KILL)],
        ("trim,hook,suspend,term,kill", TRIM | HOOK | SUSPEND | TERM | KILL),
        *[("term,trim", None), ("trim,trim", None), ("trim kill", None), ("trim,", None), (",trim", None)],
        *[("kil", None), ("killed", None), ("kill,term", None), ("trim;kill", None), ("all", None)],
    ],
)
def test_the_steps_of_a_reclaim_in_their_order(options, text, steps):
    found, err = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_ON_RECLAIM=text)
    assert found["steps"] == (steps or 0)
    wrong = "gpushare: GPUSHARE_ON_RECLAIM: not a part of trim,hook,suspend,term,kill in this order: ignored\n"
    assert err == ("" if steps else wrong)


@pytest.mark.parametrize(("name", "key"), [("GPUSHARE_GRACE", "grace"), ("GPUSHARE_MIN_RUN_TIME", "min_run")])
def test_durations_of_a_job(options, name, key):
    assert options(GPUSHARE_LIMIT="4Gi", **{name: "1.5m"})[0][key] == 90_000
    found, err = options(GPUSHARE_LIMIT="4Gi", **{name: "soon"})
    assert found[key] == 0
    assert err.startswith(f"gpushare: {name}: not a duration (write ") and err.endswith("): ignored\n")
    assert options(GPUSHARE_LIMIT="4Gi", GPUSHARE_MIN_RUN_TIME="0")[0]["min_run"] == 0


@pytest.mark.parametrize(
    ("environ", "source", "said"),
    [
        ({"GPUSHARE_LIMIT": "4Gi"}, "GPUSHARE_LIMIT=4Gi", ""),
        ({"GPUSHARE_REQUEST": "2Gi"}, "GPUSHARE_REQUEST=2Gi", ""),
        ({"GPUSHARE_REQUEST": "2Gi", "NVIDIA_GPU_MEMORY_LIMIT": "4096"}, "NVIDIA_GPU_MEMORY_LIMIT=4096", ""),
        ({"GPUSHARE_LIMIT": "4Gi", "NVIDIA_GPU_MEMORY_LIMIT": "4096"}, "GPUSHARE_LIMIT=4Gi", ""),
        (
            {"GPUSHARE_LIMIT": "4Gi", "NVIDIA_GPU_MEMORY_LIMIT": "4095"},
            "GPUSHARE_LIMIT=4Gi",
            "NVIDIA_GPU_MEMORY_LIMIT=4095: overruled by another variable",
        ),
        (
            {"GPUSHARE_LIMIT": "max", "RUNAI_GPU_MEMORY_LIMIT": "0.5"},
            "GPUSHARE_LIMIT=max",
            "RUNAI_GPU_MEMORY_LIMIT=0.5: overruled by another variable",
        ),
        (
            {"GPUSHARE_LIMIT": "500000000", "RUNAI_GPU_MEMORY_LIMIT": "0.5"},  # the same number of something else
            "GPUSHARE_LIMIT=500000000",
            "RUNAI_GPU_MEMORY_LIMIT=0.5: overruled by another variable",
        ),
        ({"CUDA_DEVICE_MEMORY_LIMIT_1": "3g", "CUDA_DEVICE_MEMORY_LIMIT_0": "4g"}, "CUDA_DEVICE_MEMORY_LIMIT_1=3g", ""),
        ({"GPUSHARE_JOB": "ab"}, "", ""),
    ],
)
def test_which_variable_the_limit_is_from(options, environ, source, said):
    found, err = options(**environ)
    assert found["source"] == source
    assert err == (f"gpushare: {said}\n" if said else "")


@pytest.mark.parametrize(
    ("request_", "limit", "kept"),
    [
        ("4Gi", "4Gi", True),
        ("max", "max", True),
        ("max", "1.0", True),
        ("100%", "max", True),
        ("max", "0.999", False),
        ("50%", "49%", False),
        ("2Gi", "1Gi", False),
        ("2Gi", "1%", True),
    ],
)
def test_a_request_is_not_above_the_limit_as_far_as_that_can_be_known(options, request_, limit, kept):
    """Bytes and shares are compared on a GPU, by the daemon."""
    found, err = options(GPUSHARE_REQUEST=request_, GPUSHARE_LIMIT=limit)
    told = "gpushare: the request is above the limit: the limit counts for both\n"
    assert err == ("" if kept else told)
    assert (found["request"] == found["limit"]) is (not kept or request_ == limit)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        *[("ff", 255), ("FF", 255), ("00000000000000ab", 171), ("f" * 16, 2**64 - 1)],
        *[("1 2", 1), ("1x", 0), ("-1", 0), (" 7", 7)],
    ],
)
def test_a_jobs_id(options, text, id):
    assert options(GPUSHARE_LIMIT="4Gi", GPUSHARE_JOB=text)[0]["job"] == id


def test_what_a_program_sees(options):
    found, _ = options(GPUSHARE_LIMIT="4Gi", CUDA_VISIBLE_DEVICES="GPU-1234,GPU-5", GPUSHARE_VISIBLE="limit")
    assert (found["devices"], found["visible_request"]) == ("GPU-1234,GPU-5", 0)
    for number, name in enumerate(("error", "warning", "info", "debug")):
        assert options(GPUSHARE_LIMIT="4Gi", GPUSHARE_LOG=f" {name} ")[0]["level"] == number
    assert options(GPUSHARE_LIMIT="4Gi", GPUSHARE_LOG="loud")[0]["level"] == 1
    assert options(GPUSHARE_LIMIT="4Gi", GPUSHARE_DRIVER="sim")[0]["software"] == 1
    assert options(GPUSHARE_LIMIT="4Gi", GPUSHARE_DRIVER="nvidia")[0]["software"] == 0
    found, err = options(GPUSHARE_LIMIT="none", GPUSHARE_LOG="error", GPUSHARE_GRACE="x", GPUSHARE_NONE="1")
    assert found["active"] == 1 and err == "", "only errors are wanted"


def test_where_daemons_are_looked_for(options, tmp_path):
    base = {"GPUSHARE_LIMIT": "4Gi", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert options(**base)[0]["sockets"] == ["/run/gpushare/shim.sock", ""]
    (tmp_path / "gpushare").mkdir(mode=0o700)
    (tmp_path / "gpushare-sim").mkdir(mode=0o777)
    assert options(**base)[0]["sockets"] == ["/run/gpushare/shim.sock", f"{tmp_path}/gpushare/shim.sock"]
    assert (
        options(**base, GPUSHARE_DRIVER="sim")[0]["sockets"][0] == ""
        or (tmp_path / "gpushare-sim").stat().st_mode & 0o77 == 0
    )
    (tmp_path / "gpushare-sim").chmod(0o700)
    assert options(**base, GPUSHARE_DRIVER="sim")[0]["sockets"] == [f"{tmp_path}/gpushare-sim/shim.sock", ""]
    (tmp_path / "gpushare-sim").chmod(0o755)
    assert options(**base, GPUSHARE_DRIVER="sim")[0]["sockets"] == ["", ""], "open to others: not ours to trust"
    found, _ = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_SOCKET="/" + "x" * 200 + "/api.sock")
    assert found["sockets"] == ["", ""]


@pytest.mark.parametrize(
    ("environ", "active", "limit"),
    [
        ({"GPUSHARE_LIMITS": "4Gi", "XGPUSHARE_LIMIT": "5Gi"}, 0, None),
        ({"GPUSHARE_LIMIT": "  "}, 0, None),
        ({"GPUSHARE_LIMIT": "4g"}, 1, None),
        ({"NVIDIA_GPU_MEMORY_REQUEST": "4g"}, 1, None),
        ({"GPUSHARE_JOB": "ab"}, 1, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "4Gi"}, 0, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT_": "4g"}, 0, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT_x": "4g"}, 0, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT_1x": "4g"}, 0, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT_-1": "4g", "CUDA_DEVICE_MEMORY_LIMIS_1": "4g"}, 0, None),
        ({"CUDA_DEVICE_MEMORY_LIMITS_1": "4g"}, 0, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "4g"}, 1, 4 * 2**30),
        ({"CUDA_DEVICE_MEMORY_LIMIT_9": "4g"}, 1, 4 * 2**30),
        ({"CUDA_DEVICE_MEMORY_LIMIT_10": " 4g"}, 1, 4 * 2**30),
        ({"CUDA_DEVICE_MEMORY_LIMIT_3": " ", "CUDA_DEVICE_MEMORY_LIMIT_4": "0"}, 0, None),
        ({"NVIDIA_GPU_MEMORY_LIMIT_1": "4096"}, 0, None),
        ({"GPUSHARE_JOB": "ab", "GPUSHARE_REQUEST_0": "4Gi", "NVIDIA_GPU_MEMORY_REQUEST_0": "4096"}, 1, None),
        ({"GPUSHARE_JOB": "ab", "GPUSHARE_LIMIT_0": "4Gi", "RUNAI_GPU_MEMORY_LIMIT_0": "0.5"}, 1, None),
        ({"GPUSHARE_LIMIT": "\t4Gi\r"}, 1, 4 * 2**30),
    ],
    ids=lambda value: ",".join(map("=".join, value.items())) if isinstance(value, dict) else None,
)
def test_which_variables_count(options, environ, active, limit):
    found, _ = options(**environ)
    assert found["active"] == active
    assert found["limit"] == ([0, 0] if limit is None else [1, limit])


@pytest.mark.parametrize(
    ("name", "most"), [("CUDA_VISIBLE_DEVICES", 1023), ("GPUSHARE_NAME", 63), ("GPUSHARE_LIMIT", 47)]
)
def test_as_much_of_a_text_is_kept_as_fits(options, name, most):
    before = "GPUSHARE_LIMIT=" if name == "GPUSHARE_LIMIT" else ""
    key = {"CUDA_VISIBLE_DEVICES": "devices", "GPUSHARE_NAME": "name", "GPUSHARE_LIMIT": "source"}[name]
    for length in (most - 1, most, most + 1):
        value = "4Gi".rjust(length - len(before), "0") if before else "x" * length
        if before:  # a number has no more than so many digits
            value = "4" + " " * (length - len(before) - 3) + "Gi"
        found, _ = options(**{"GPUSHARE_LIMIT": "4Gi", name: value})
        assert found[key] == (before + value)[:most]
        assert found["limit"] == [1, 4 * 2**30]


@pytest.mark.parametrize(
    ("text", "number"),
    [("-2147483647", -(2**31) + 1), ("7 ", 7), ("-0", 0), ("\t5", 5), ("5\r", 5), ("9", 9), ("-190", -190)],
)
def test_a_priority_is_a_whole_number_with_blanks_around_it(options, text, number):
    found, err = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_PRIORITY=text)
    assert (found["priority"], err) == (number, "")
    for wrong in ("-2147483648", "- 7", "--7", "-", "7-", "99999999999999999999"):
        found, err = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_PRIORITY=wrong)
        assert found["priority"] == 0 and "GPUSHARE_PRIORITY: not a whole number: ignored" in err


def test_the_socket_that_is_named_is_the_only_one(options):
    for api, shim in (
        ("/run/x/api.sock", "/run/x/shim.sock"),
        ("/api.sock", "/shim.sock"),
        ("run/api.sock", "run/shim.sock"),
        ("api.sock", ""),
        ("/" + "x" * 95 + "/api.sock", "/" + "x" * 95 + "/shim.sock"),
        ("/" + "x" * 96 + "/api.sock", "/" + "x" * 96 + "/shim.sock"),
        ("/" + "x" * 97 + "/api.sock", ""),
    ):
        assert options(GPUSHARE_LIMIT="4Gi", GPUSHARE_SOCKET=api)[0]["sockets"] == [shim, ""]


def test_where_a_users_daemon_is_looked_for_without_a_runtime_directory(options, tmp_path):
    """In /tmp, if the directory there is the user's own, and closed to others."""
    (tmp_path / "file").write_text("")
    (tmp_path / "gpushare").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path)
    own = Path(f"/tmp/gpushare-{os.getuid()}")
    there = own.is_dir() and not own.is_symlink() and own.stat().st_mode & 0o77 == 0
    in_tmp = f"{own}/shim.sock" if there else ""
    for base, user in (
        (f"{tmp_path}/file", in_tmp),
        (f"{tmp_path}/none", in_tmp),
        ("", in_tmp),
        (f"{tmp_path}/link", f"{tmp_path}/link/gpushare/shim.sock"),
    ):
        found, _ = options(GPUSHARE_LIMIT="4Gi", XDG_RUNTIME_DIR=base)
        assert found["sockets"] == ["/run/gpushare/shim.sock", user], base
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "gpushare").symlink_to(tmp_path / "gpushare")
    found, _ = options(GPUSHARE_LIMIT="4Gi", XDG_RUNTIME_DIR=f"{tmp_path}/other")
    assert found["sockets"] == ["/run/gpushare/shim.sock", ""], "a link may lead anywhere"
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "gpushare").touch(mode=0o600)
    found, _ = options(GPUSHARE_LIMIT="4Gi", XDG_RUNTIME_DIR=f"{tmp_path}/plain")
    assert found["sockets"] == ["/run/gpushare/shim.sock", ""], "a file is no directory"
    if os.getuid() == 0:  # nobody else can give a directory away
        os.chown(tmp_path / "gpushare", 12345, 12345)
        found, _ = options(GPUSHARE_LIMIT="4Gi", XDG_RUNTIME_DIR=str(tmp_path))
        assert found["sockets"] == ["/run/gpushare/shim.sock", ""], "another user's is not ours to trust"


def test_what_is_said_of_a_wrong_variable_is_said_once_and_names_it(options):
    others = {"GPUSHARE": "2", "OTHER_GPUSHARE_X": "3"}
    for environ in ({"GPUSHARE_FOO": "1"}, {"GPUSHARE_FOO": "1", "GPUSHARE_BAR": "2"}):
        _, err = options(GPUSHARE_LIMIT="4Gi", **environ, **others)
        assert err == "gpushare: GPUSHARE_FOO=1: there is no such variable\n"
    _, err = options(GPUSHARE_LIMIT="4Gi", GPUSHARE_MODE="x", **others)
    assert err == "gpushare: GPUSHARE_MODE: none of enforce, observe, off: ignored\n"
    assert options(GPUSHARE_FOO="1")[1] == "", "it is inert, and says nothing"
    assert options(GPUSHARE_FOO="1", GPUSHARE_JOB="ab")[1] == "", "gpushare run has said it"


TOTAL = 16 * 2**30 + 700


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        *[("max", TOTAL), ("4Gi", 4 * 2**30), ("1048577", 2**20), ("1049088", 2**20 + 512), ("100%", TOTAL)],
        *[("0.333333333", TOTAL * 333333333 // 10**9), ("99Gi", 99 * 2**30), ("0.5", TOTAL // 2)],
    ],
)
def test_an_amount_on_a_gpu_is_a_whole_number_of_units(options, text, amount):
    found, _ = options(GPUSHARE_LIMIT=text, GPUSHARE_REQUEST="none")
    assert found["on_a_gpu"] == [0, amount // 512 * 512]
    assert options()[0]["on_a_gpu"] == [TOTAL // 512 * 512] * 2, "what is not said is all of it"


def test_any_environment_is_survived(options):
    chance = random.Random(3)
    names = [
        "GPUSHARE_LIMIT",
        "GPUSHARE_REQUEST",
        "GPUSHARE_JOB",
        "GPUSHARE_GRACE",
        "GPUSHARE_SOCKET",
        "CUDA_DEVICE_MEMORY_LIMIT_0",
        "RUNAI_GPU_MEMORY_LIMIT",
        "GPUSHARE_",
    ]
    for _ in range(60):
        environ = {
            name: "".join(chance.choices("09.eE+-%GiMkm \t\xe9/", k=chance.randint(0, 200)))
            for name in chance.sample(names, 4)
        }
        options(**environ)


@pytest.mark.parametrize("flags", [ADDRESS, THREAD], ids=["address", "thread"])
def test_table(compile_c, flags):
    done = run(sanitized(compile_c, "core_table", flags))
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


def test_a_table_stays_in_its_arrays_and_lives_without_more(compile_c):
    done = run(compile_c("core_pages.c", *ADDRESS))
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


@pytest.mark.parametrize("flags", [ADDRESS, THREAD], ids=["address", "thread"])
def test_account_against_a_daemon_that_revokes(compile_c, daemon, tmp_path, flags):
    """Unused credit is taken back all the time: the word stays right, and every thread gets its own answers."""
    daemon.policy.chunk, daemon.policy.limit = 2**26, 2**31
    program = sanitized(compile_c, "core_account", flags)
    environ = {"GPUSHARE_LIMIT": "2Gi", "GPUSHARE_SOCKET": str(tmp_path / "api.sock"), "GPUSHARE_LOG": "error"}
    done = run(program, environ)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 0]
    assert len(daemon.asks()) > 100


def test_account_while_the_daemon_comes_and_goes(compile_c, daemon, tmp_path):
    daemon.policy.chunk, daemon.policy.limit = 2**26, 2**31
    program = sanitized(compile_c, "core_account", THREAD)
    over = threading.Event()

    def disturb():
        while not over.wait(0.1):
            daemon.stop()
            daemon.start()

    thread = threading.Thread(target=disturb)
    thread.start()
    environ = {"GPUSHARE_LIMIT": "2Gi", "GPUSHARE_SOCKET": str(tmp_path / "api.sock"), "GPUSHARE_LOG": "error"}
    done = run(program, environ)
    over.set()
    thread.join()
    assert done.returncode == 0, done.stderr
    used, _refused = json.loads(done.stdout)
    assert used == 0
    assert len(daemon.hellos) > 4
