"""Where a setting comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpushare import config
from gpushare.env import BY_KEY, BY_NAME, VARIABLES, Setting, Settings, unknown_variables
from gpushare.errors import UsageError
from gpushare.quantity import Dialect


def settings(environ=None, flags=None, files=()):
    return Settings(flags or {}, environ or {}, files)


def test_flag_then_variable_then_alias_then_files_then_default():
    environ = {"GPUSHARE_LIMIT": "2Gi", "RUNAI_GPU_MEMORY_LIMIT": "0.5", "NVIDIA_GPU_MEMORY_LIMIT": "4096"}
    files = (("/user", {"limit": "5Gi"}), ("/system", {"limit": "6Gi", "priority": "3"}))
    flags = {"GPUSHARE_LIMIT": "1Gi"}

    def source(**kinds):
        found = settings(**kinds).find("GPUSHARE_LIMIT")
        return found and (found.text, found.source)

    assert source(environ=environ, flags=flags, files=files) == ("1Gi", "--limit")
    assert source(environ=environ, files=files) == ("2Gi", "GPUSHARE_LIMIT=2Gi")
    del environ["GPUSHARE_LIMIT"]
    assert source(environ=environ, files=files) == ("0.5", "RUNAI_GPU_MEMORY_LIMIT=0.5")
    del environ["RUNAI_GPU_MEMORY_LIMIT"]
    assert source(environ=environ, files=files) == ("4096", "NVIDIA_GPU_MEMORY_LIMIT=4096")
    assert source(files=files) == ("5Gi", "/user: limit")
    assert source() is None
    assert settings(files=files).integer("GPUSHARE_PRIORITY") == 3
    assert settings().integer("GPUSHARE_PRIORITY") == 0
    assert settings().choice("GPUSHARE_DRIVER") == "auto"


def test_each_alias_is_read_in_its_own_dialect():
    for name, text, canonical in [
        ("RUNAI_GPU_MEMORY_LIMIT", "4G", "4000000000"),
        ("NVIDIA_GPU_MEMORY_LIMIT", "4096", "4Gi"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "4g", "4Gi"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "4g", "4Gi"),
    ]:
        budget, _, limit = settings({name: text}).budget()
        assert limit.name == name
        assert Settings({}, {"GPUSHARE_LIMIT": canonical}).find("GPUSHARE_LIMIT").quantity() == budget.limit


def test_an_empty_variable_is_not_set():
    found = settings({"GPUSHARE_LIMIT": " ", "NVIDIA_GPU_MEMORY_LIMIT": "1024"})
    assert found.find("GPUSHARE_LIMIT").name == "NVIDIA_GPU_MEMORY_LIMIT"


def test_of_several_limits_per_device_the_lowest_holds():
    name = "CUDA_DEVICE_MEMORY_LIMIT"
    environ = {f"{name}_0": "8g", f"{name}_1": "4g", f"{name}_X": "1g"}
    found = settings(environ)
    assert found.find("GPUSHARE_LIMIT").name == "CUDA_DEVICE_MEMORY_LIMIT_1"
    assert len(found.warnings) == 1
    environ["CUDA_DEVICE_MEMORY_LIMIT_2"] = "rubbish"
    with pytest.raises(UsageError, match="rubbish"):
        settings(environ).budget()


def test_hamis_zero_is_no_limit():
    assert settings({"CUDA_DEVICE_MEMORY_LIMIT": "0m"}).find("GPUSHARE_LIMIT") is None


def test_one_warning_when_variables_disagree_and_none_when_they_agree():
    found = settings({"GPUSHARE_LIMIT": "4Gi", "NVIDIA_GPU_MEMORY_LIMIT": "4096"})
    found.budget()
    assert found.warnings == []
    found = settings({"GPUSHARE_LIMIT": "4Gi", "NVIDIA_GPU_MEMORY_LIMIT": "1024", "RUNAI_GPU_MEMORY_LIMIT": "0.5"})
    found.budget()
    found.budget()
    assert found.warnings == ["GPUSHARE_LIMIT=4Gi (4.0 GiB) and RUNAI_GPU_MEMORY_LIMIT=0.5 disagree: the first counts"]


@pytest.mark.parametrize(
    ("flags", "inside", "found"),
    [
        ({"GPUSHARE_LIMIT": "3Gi"}, True, ("3Gi", "3Gi")),
        ({"GPUSHARE_LIMIT": "1Gi"}, True, ("1Gi", "1Gi")),
        ({"GPUSHARE_REQUEST": "3Gi"}, True, ("3Gi", "3Gi")),
        ({"GPUSHARE_REQUEST": "1Gi", "GPUSHARE_LIMIT": "5Gi"}, True, ("1Gi", "5Gi")),
        ({}, True, ("2Gi", "4Gi")),
        ({"GPUSHARE_LIMIT": "3Gi"}, False, ("2Gi", "3Gi")),
        ({"GPUSHARE_REQUEST": "3Gi"}, False, ("3Gi", "4Gi")),
    ],
)
def test_in_a_job_an_option_counts_without_the_variables_of_the_job_around(flags, inside, found):
    environ = {"GPUSHARE_REQUEST": "2Gi", "GPUSHARE_LIMIT": "4Gi", **({"GPUSHARE_JOB": "ab12"} if inside else {})}
    budget, _, _ = Settings(flags, environ).budget()
    assert (budget.request.canonical(), budget.limit.canonical()) == found


def test_only_run_ais_limit_alone_guarantees_nothing():
    assert settings({"RUNAI_GPU_MEMORY_LIMIT": "4Gi"}).budget()[0].request.canonical() == "none"
    both = {"RUNAI_GPU_MEMORY_LIMIT": "4Gi", "NVIDIA_GPU_MEMORY_REQUEST": "1024"}
    assert settings(both).budget()[0].request.canonical() == "1Gi"
    both = {"RUNAI_GPU_MEMORY_LIMIT": "4Gi", "GPUSHARE_LIMIT": "4Gi"}
    assert settings(both).budget()[0].request.canonical() == "4Gi"


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("GPUSHARE_LIMIT", "4g", lambda s: s.budget()),
        ("RUNAI_GPU_MEMORY_LIMIT", "25%", lambda s: s.budget()),
        ("GPUSHARE_PRIORITY", "1.5", lambda s: s.integer("GPUSHARE_PRIORITY")),
        ("GPUSHARE_PRIORITY", "99999999999", lambda s: s.integer("GPUSHARE_PRIORITY")),
        ("GPUSHARE_GRACE", "soon", lambda s: s.duration("GPUSHARE_GRACE")),
        ("GPUSHARE_DRIVER", "amd", lambda s: s.choice("GPUSHARE_DRIVER")),
    ],
)
def test_a_bad_value_names_its_variable(name, text, read):
    with pytest.raises(UsageError) as caught:
        read(settings({name: text}))
    assert caught.value.message.startswith(f"{name}={text}: ")


def test_unknown_variables_and_the_nearest_name():
    environ = {variable.name: "" for variable in VARIABLES} | {"GPUSHARE_LIMITS": "", "GPUSHARE_ZZZZ": "", "OTHER": ""}
    assert unknown_variables(environ) == [
        "there is no variable GPUSHARE_LIMITS: did you mean GPUSHARE_LIMIT?",
        "there is no variable GPUSHARE_ZZZZ",
    ]


def test_the_users_file_comes_before_the_systems(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "system.toml")
    (tmp_path / "system.toml").write_text('limit = "8Gi"\npriority = -1\n')
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert config.load_settings({}, environ).text("GPUSHARE_LIMIT") == "8Gi"
    (tmp_path / "gpushare").mkdir()
    (tmp_path / "gpushare" / "config.toml").write_text('limit = "4Gi"\n')
    found = config.load_settings({}, environ)
    assert found.text("GPUSHARE_LIMIT") == "4Gi"
    assert found.integer("GPUSHARE_PRIORITY") == -1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('limt = "4Gi"', r"unknown key \$.limt"),
        ("limit = [1]", r"\$.limit must be a text or a number"),
        ("limit = true", r"\$.limit must be a text or a number"),
        ("limit = ", "cannot read"),
        ('job = "0123"', r"unknown key \$.job"),
        ("\xff", "cannot read"),
    ],
)
def test_bad_files_are_refused_with_their_path(tmp_path, content, says):
    path = tmp_path / "config.toml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=says) as caught:
        config.load_settings({}, {"GPUSHARE_CONFIG": str(path)})
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("key", "hint"), [("limt", "did you mean limit?"), ("zzzzzzzz", "known keys: compute, driver, ")]
)
def test_a_key_that_is_not_known_has_the_nearest_or_all_of_them(tmp_path, key, hint):
    (tmp_path / "c.toml").write_text(f"{key} = 1\n")
    with pytest.raises(UsageError) as caught:
        config.read_file(tmp_path / "c.toml")
    assert caught.value.hint.startswith(hint)


def test_a_file_has_its_values_as_a_user_would_write_them(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('limit = "4Gi"\npriority = -3\ncompute = 0.5\nrequire_daemon = true\n[profiles.a]\nlimit = "1Gi"\n')
    assert config.read_file(path) == {"limit": "4Gi", "priority": "-3", "compute": "0.5", "require_daemon": "1"}
    path.write_text("require_daemon = false\n")
    assert config.read_file(path) == {"require_daemon": "0"}


def test_what_is_not_set_is_its_default_or_nothing():
    unset = settings()
    assert unset.choice("GPUSHARE_FOR") == "" and unset.framework() is None
    assert (unset.choice("GPUSHARE_MODE"), unset.text("GPUSHARE_MODE")) == ("enforce", "enforce")
    assert unset.text("GPUSHARE_SOCKET") is None and unset.flag("GPUSHARE_REQUIRE_DAEMON") is False
    assert unset.integer("GPUSHARE_PRIORITY") == 0
    assert unset.duration("GPUSHARE_GRACE") is None and unset.share("GPUSHARE_COMPUTE") is None


def test_a_file_that_is_named_must_exist(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        config.load_settings({}, {"GPUSHARE_CONFIG": str(tmp_path / "none.toml")})


def test_the_shim_has_the_same_table():
    """shim/preload/options.c reads the same variables, in the same order and dialects."""
    source = (Path(__file__).parents[2] / "shim" / "preload" / "options.c").read_text()

    def table(name):
        return re.search(rf"{name}\[\] = \{{(.*?)\n?\}};", source, re.DOTALL)[1]

    for name in ("request", "limit"):
        variable = BY_NAME[f"GPUSHARE_{name.upper()}"]
        expected = [(variable.name, "NATIVE", "false")]
        for alias in variable.aliases:
            expected.append((alias.name, alias.dialect.name, str(alias.per_device).lower()))
        assert re.findall(r'{"(\w+)", GS_(\w+), (\w+)}', table(f"{name}_sources")) == expected


def test_the_library_knows_all_variables():
    """shim/preload/known_names.def is made from the table."""
    text = (Path(__file__).parents[2] / "shim" / "preload" / "known_names.def").read_text()
    assert re.findall(r"^GS_NAME\((\w+)\)$", text, re.MULTILINE) == list(BY_NAME), "run `make man`"


def test_what_gpushare_sets_itself_is_no_key_of_a_configuration_file():
    """A file that named a hook's GPU would say the same to every hook."""
    told = [one for one in VARIABLES if "set for" in one.help or "set by" in one.help]
    assert len(told) >= 7
    assert [one.name for one in told if one.in_file or one.key in BY_KEY] == []


# ---- the table --------------------------------------------------------------------------------------------------


def test_each_variable_is_there_once_and_the_budget_comes_first():
    names = [one.name for one in VARIABLES]
    assert len(set(names)) == len(names) and names[:2] == ["GPUSHARE_REQUEST", "GPUSHARE_LIMIT"]


def test_what_is_of_one_job_or_says_where_files_are_is_no_key_of_a_file():
    """Every job would have it."""
    keys = ("name", "profile", "sim", "config", "cluster_socket", "job", "queue_job", "array_index")
    assert not set(keys) & set(BY_KEY)
    assert {"request", "limit", "priority", "grace", "mode", "driver", "log", "for", "socket", "relief_url"} <= set(
        BY_KEY
    )


# ---- a profile, and a framework -----------------------------------------------------------------------------------


def test_a_profile_comes_after_the_command_line_and_before_all_else():
    profile = {"GPUSHARE_LIMIT": Setting("3Gi", "profile small")}
    found = Settings({}, {"GPUSHARE_LIMIT": "2Gi"}, (("/user", {"limit": "5Gi"}),), profile)
    assert found.find("GPUSHARE_LIMIT") == ("3Gi", "profile small", "", Dialect.NATIVE) and found.warnings == []
    found = Settings({"GPUSHARE_LIMIT": "1Gi"}, {}, (), profile)
    assert found.find("GPUSHARE_LIMIT").source == "--limit"


@pytest.mark.parametrize(
    ("environ", "files", "found"),
    [
        ({}, (), None),
        ({"GPUSHARE_FOR": "vllm"}, (), ("request", "--for")),
        ({"GPUSHARE_FOR": "jax"}, (), ("limit", "--for")),
        ({"GPUSHARE_FOR": "vllm"}, (("/user", {"visible": "limit"}),), ("limit", "/user: visible")),
        (
            {"GPUSHARE_FOR": "vllm", "GPUSHARE_VISIBLE": "limit"},
            (),
            ("limit", "GPUSHARE_VISIBLE=limit"),
        ),
    ],
)
def test_a_framework_says_what_is_visible_unless_its_user_does(environ, files, found):
    setting = settings(environ, files=files).find("GPUSHARE_VISIBLE")
    assert (setting and (setting.text, setting.source)) == found
    assert settings({"GPUSHARE_FOR": "vllm"}).find("GPUSHARE_LIMIT") is None


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("1", True),
        ("TRUE", True),
        ("yes", True),
        ("On", True),
        ("0", False),
        ("false", False),
        ("no", False),
        ("OFF", False),
    ],
)
def test_yes_and_no_are_written_in_many_ways(text, read):
    assert settings({"GPUSHARE_REQUIRE_DAEMON": text}).flag("GPUSHARE_REQUIRE_DAEMON") is read


# ---- what a job is given --------------------------------------------------------------------------------------------


def test_options_that_nobody_has_set_are_left_out_and_the_others_are_as_the_api_takes_them():
    usual = {"priority": 0, "on_reclaim": "trim,term,kill", "min_run_time": 0.0}
    assert settings().options_of_job() == usual
    environ = {"GPUSHARE_COMPUTE": "50%", "GPUSHARE_GRACE": "5s", "GPUSHARE_NAME": "x"}
    assert settings(environ).options_of_job() == {**usual, "compute": 0.5, "grace": 5.0}


def test_without_a_budget_nothing_is_guaranteed_and_nothing_limited():
    budget, request, limit = settings().budget()
    assert (budget.request.canonical(), budget.limit.canonical(), request, limit) == ("none", "max", None, None)


def test_variables_that_say_another_amount_are_named():
    environ = {
        **{"GPUSHARE_LIMIT": "4Gi", "NVIDIA_GPU_MEMORY_LIMIT": "4096", "RUNAI_GPU_MEMORY_LIMIT": "0.5"},
        **{"CUDA_DEVICE_MEMORY_LIMIT": "rubbish", "CUDA_DEVICE_MEMORY_LIMIT_0": "0"},
    }
    found = settings(environ)
    winner = found.find("GPUSHARE_LIMIT").quantity()
    assert found.overruled_aliases("GPUSHARE_LIMIT", winner) == ["RUNAI_GPU_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-5", -5),
        ("2147483647", 2**31 - 1),
        ("-2147483647", 1 - 2**31),
        ("2147483648", None),
        ("-2147483649", None),
    ],
)
def test_a_whole_number_fits_into_32_bits(text, value):
    found = settings({"GPUSHARE_PRIORITY": text})
    if value is not None:
        assert found.integer("GPUSHARE_PRIORITY") == value
        return
    with pytest.raises(UsageError, match="is too far from 0") as caught:
        found.integer("GPUSHARE_PRIORITY")
    assert caught.value.code == "bad_integer"


@pytest.mark.parametrize(("text", "part"), [("1", 1.0), ("100%", 1.0), ("0.5", 0.5), ("1%", 0.01)])
def test_a_part_is_at_most_the_whole(text, part):
    assert settings({"GPUSHARE_COMPUTE": text}).share("GPUSHARE_COMPUTE") == part


def test_a_limit_of_a_device_that_is_empty_is_none():
    found = settings({"CUDA_DEVICE_MEMORY_LIMIT_0": "", "CUDA_DEVICE_MEMORY_LIMIT_1": "4g"})
    assert found.find("GPUSHARE_LIMIT").name == "CUDA_DEVICE_MEMORY_LIMIT_1" and found.warnings == []


def test_a_device_without_a_limit_comes_after_those_with_one():
    found = settings({"CUDA_DEVICE_MEMORY_LIMIT_0": "0", "CUDA_DEVICE_MEMORY_LIMIT_1": "4g"})
    assert found.find("GPUSHARE_LIMIT").name == "CUDA_DEVICE_MEMORY_LIMIT_1"


# ---- files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user whose file has a profile; the system has one too."""
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "system.toml")
    (tmp_path / "system.toml").write_text('[profiles.small]\nlimit = "8Gi"\n[profiles.large]\nlimit = "32Gi"\n')
    (tmp_path / ".config" / "gpushare").mkdir(parents=True)
    (tmp_path / ".config" / "gpushare" / "config.toml").write_text('grace = "9s"\n[profiles.small]\nlimit = "2Gi"\n')
    return tmp_path


def test_the_users_file_is_in_the_home_unless_another_place_is_named(home):
    def grace(**environ):
        return config.load_settings(None, environ).duration("GPUSHARE_GRACE")

    assert grace(HOME=str(home)) == 9.0
    assert grace(HOME="/nowhere", XDG_CONFIG_HOME=str(home / ".config")) == 9.0
    assert grace(HOME=str(home), XDG_CONFIG_HOME="/nowhere") is None
    assert grace(HOME="/nowhere", GPUSHARE_CONFIG=str(home / ".config/gpushare/config.toml")) == 9.0
    assert grace() is None


def test_a_profile_is_that_of_the_command_line_alone(home):
    environ = {"HOME": str(home), "GPUSHARE_PROFILE": "small"}
    assert config.load_settings({}, environ).find("GPUSHARE_LIMIT") is None
    for name, limit in (("small", "2Gi"), ("large", "32Gi")):
        found = config.load_settings({"GPUSHARE_PROFILE": name}, environ).find("GPUSHARE_LIMIT")
        assert found.text == limit and found.source.endswith(f": profiles.{name}.limit")
    found = config.load_settings({"GPUSHARE_PROFILE": None}, environ)  # `run` without --profile
    assert found.find("GPUSHARE_LIMIT").text == "2Gi"
    with pytest.raises(UsageError, match="there is no profile 'smal'") as caught:
        config.load_settings({"GPUSHARE_PROFILE": "smal"}, environ)
    assert caught.value.hint == "did you mean small?"


def test_the_environment_is_this_processs_unless_another_is_given(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "GPUSHARE_CONFIG", "GPUSHARE_GRACE"):
        monkeypatch.delenv(name, raising=False)
    nowhere = {"HOME": "/nowhere"}
    assert set(config.load_profiles()) == set(config.load_profiles(nowhere)) == {"small", "large"}
    assert config.load_profiles()["small"].options == {"limit": "2Gi"}, "the user's replaces the system's"
    (home / "system.toml").unlink()
    assert set(config.load_profiles()) == {"small"} and config.load_profiles(nowhere) == {}
    assert config.load_settings().duration("GPUSHARE_GRACE") == 9.0
