"""The environment variables of gpushare in one table, and how a setting is found.

A setting comes from the first of: the command line, the profile that `run` was given, its variable, the variable's
aliases in order, the user's file, the system's file, the default. Each value keeps its source, so that messages can
name it.

Aliases are variables of other products (Run:ai, NVIDIA, HAMi), each in the dialect of its product, so that jobs written
for them run unchanged. If two set variables disagree, the first counts and there is one warning. The preload library
has the aliases in C; a test compares them. `make man` gives it the names of all variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpushare.errors import UsageError
from gpushare.frameworks import FRAMEWORKS, Framework
from gpushare.job_spec import OPTIONS, JobSpec, Option, default_text, plain_options, variable_of
from gpushare.quantity import BLANKS, Budget, Dialect, Kind, Quantity, format_bytes, parse_duration
from gpushare.reclaim_steps import parse_steps

__all__ = ["VARIABLES", "Alias", "Setting", "Settings", "Variable", "unknown_variables"]

PREFIX = "GPUSHARE_"
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Alias(NamedTuple):
    name: str
    dialect: Dialect
    per_device: bool = False  # also as NAME_0, NAME_1, ...


class Variable(NamedTuple):
    name: str
    help: str
    default: str | None = None
    aliases: tuple[Alias, ...] = ()
    choices: tuple[str, ...] = ()
    in_file: bool = True  # may also be in a configuration file
    kind: str = "text"

    @property
    def key(self) -> str:
        """Its name in a configuration file."""
        return self.name.removeprefix(PREFIX).lower()

    @property
    def option(self) -> str:
        """The option on the command line."""
        return f"--{self.key.replace('_', '-')}"


ALIASES = {
    "request": (Alias("NVIDIA_GPU_MEMORY_REQUEST", Dialect.MIB),),
    "limit": (
        Alias("RUNAI_GPU_MEMORY_LIMIT", Dialect.RUNAI),
        Alias("NVIDIA_GPU_MEMORY_LIMIT", Dialect.MIB),
        Alias("CUDA_DEVICE_MEMORY_LIMIT", Dialect.HAMI, per_device=True),
    ),
}
"""The variables of a job's options, by option."""
KINDS = {"amount": "quantity", "integer": "integer", "seconds": "duration", "share": "share"}
"""The kind of a value, by kind of option; all others are texts."""


def _of_job(name: str, option: Option) -> Variable:
    """The variable of an option of a job (job_spec.py). A job's name is not for a file: every job would have it."""
    return Variable(
        variable_of(name),
        option.variable,
        default_text(name),
        ALIASES.get(name, ()),
        in_file=name != "name",
        kind=KINDS.get(option.kind, "text"),
    )


HOOKS = (
    ("relief", "cmd", "a command that has the program give memory back; for the reclaim step hook"),
    ("relief", "url", "the same as a URL to POST to, or an engine's: vllm+http://localhost:8000"),
    ("resume", "cmd", "a command that tells the program that its memory is there again"),
    ("resume", "url", "the same as a URL to POST to; that of an engine if the relief URL is one"),
)
"""The variables of a job's hooks: when it is called, how, and what that means."""
_FIRST = ("request", "limit")
VARIABLES = (
    *(_of_job(name, OPTIONS[name]) for name in _FIRST),
    *(_of_job(name, option) for name, option in OPTIONS.items() if option.variable and name not in _FIRST),
    Variable(
        "GPUSHARE_MODE",
        "enforce; observe: only watch what the program uses; off: run it without gpushare",
        "enforce",
        choices=("enforce", "observe", "off"),
        kind="choice",
    ),
    Variable(
        "GPUSHARE_VISIBLE",
        "what a program sees as the GPU's total memory",
        "limit",
        choices=("limit", "request"),
        kind="choice",
    ),
    Variable(
        "GPUSHARE_FOR",
        "the framework of the program: sets what it needs to share a GPU well",
        choices=tuple(FRAMEWORKS),
        kind="choice",
    ),
    Variable(
        "GPUSHARE_DRIVER",
        "the NVIDIA driver or the software driver",
        "auto",
        choices=("auto", "nvidia", "sim"),
        kind="choice",
    ),
    Variable(
        "GPUSHARE_LOG",
        "how much the preload library writes to stderr",
        "warning",
        choices=("error", "warning", "info", "debug"),
        kind="choice",
    ),
    Variable(
        "GPUSHARE_REQUIRE_DAEMON",
        "1: `gpushare run` fails instead of starting a program without a daemon",
        "0",
        kind="flag",
    ),
    Variable(
        "GPUSHARE_PROFILE",
        "the set of options that `gpushare run` starts from; `gpushare profiles` lists them",
        in_file=False,
    ),
    *(Variable(f"GPUSHARE_{hook.upper()}_{kind.upper()}", text) for hook, kind, text in HOOKS),
    Variable("GPUSHARE_SOCKET", "path of the daemon's api.sock"),
    Variable("GPUSHARE_CLUSTER_SOCKET", "path of the socket of the service that runs queued jobs", in_file=False),
    Variable("GPUSHARE_SIM", "settings of the software driver: gpus=2,memory=16Gi,...", in_file=False),
    Variable("GPUSHARE_CONFIG", "path of the user's configuration file", in_file=False),
    Variable("GPUSHARE_JOB", "the job a process belongs to; set by gpushare run", in_file=False, kind="job"),
    Variable(
        "GPUSHARE_QUEUE_JOB", "the id of a job that `gpushare submit` has queued; set for its program", in_file=False
    ),
    Variable("GPUSHARE_HOOK", "relief or resume; set for hooks", in_file=False),
    Variable("GPUSHARE_HOOK_BYTES", "the bytes that are wanted back; set for hooks", in_file=False),
    Variable("GPUSHARE_HOOK_GPU", "the UUID of the GPU that they are wanted of; set for hooks", in_file=False),
    Variable("GPUSHARE_HOOK_SECONDS", "the seconds after which a hook is ended; set for hooks", in_file=False),
    Variable("GPUSHARE_ARRAY_INDEX", "the number of a job in its array, from 0; set for its program", in_file=False),
)

BY_NAME = {variable.name: variable for variable in VARIABLES}
BY_KEY = {variable.key: variable for variable in VARIABLES if variable.in_file}


class Setting(NamedTuple):
    """A value and where it came from, as messages name it: `--limit`, `RUNAI_GPU_MEMORY_LIMIT=0.25`, a file."""

    text: str
    source: str
    name: str = ""  # of the variable, when it is one
    dialect: Dialect = Dialect.NATIVE

    def quantity(self) -> Quantity:
        with _naming(self):
            return Quantity.parse(self.text, self.dialect)

    def seconds(self) -> float:
        with _naming(self):
            return parse_duration(self.text)

    def __str__(self) -> str:
        return self.text


class _naming:
    """Name the setting's source in an error about its value."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UsageError):
            raise type(error)(
                f"{self.setting.source}: {error.message}", facts=error.facts, hint=error.hint, code=error.code
            ) from None


@dataclass
class Settings:
    """All settings of one command, from flags, environment and files, and the warnings about them."""

    flags: Mapping[str, str | None] = field(default_factory=dict)  # by the variable's name
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    files: tuple[tuple[str, Mapping[str, str]], ...] = ()  # (path, values by key), the user's first
    profile: Mapping[str, Setting] = field(default_factory=dict)  # by the variable's name
    warnings: list[str] = field(default_factory=list)

    def find(self, name: str) -> Setting | None:
        variable = BY_NAME[name]
        flag = self.flags.get(name)
        if flag is not None:
            return Setting(flag, variable.option)
        if name in self.profile:
            return self.profile[name]
        found = list(self._in_environment(variable))
        self._warn_of_disagreement(found)
        if found:
            return found[0]
        found_in_files = self._in_files(variable)
        if found_in_files is None and name == "GPUSHARE_VISIBLE":
            framework = self.framework()
            return Setting(framework.visible, "--for") if framework is not None else None
        return found_in_files

    def framework(self) -> Framework | None:
        """Of the program, if it was named. Raises UsageError if it is not known."""
        return FRAMEWORKS.get(self.choice("GPUSHARE_FOR"))

    def text(self, name: str) -> str | None:
        setting = self.find(name)
        return setting.text if setting else BY_NAME[name].default

    def choice(self, name: str) -> str:
        setting, choices = self.find(name), BY_NAME[name].choices
        if setting is None:
            return BY_NAME[name].default or ""
        if setting.text not in choices:
            with _naming(setting):
                from gpushare.nearest import did_you_mean

                raise UsageError(
                    f"{setting.text!r} is none of {', '.join(choices)}",
                    code="bad_choice",
                    hint=did_you_mean(setting.text, choices),
                )
        return setting.text

    def flag(self, name: str) -> bool:
        setting = self.find(name)
        if setting is None:
            return BY_NAME[name].default in TRUE
        if setting.text.lower() not in (*TRUE, *FALSE):
            with _naming(setting):
                raise UsageError(f"{setting.text!r} is neither 1 nor 0", code="bad_choice")
        return setting.text.lower() in TRUE

    def integer(self, name: str) -> int:
        setting = self.find(name)
        if setting is None:
            return int(BY_NAME[name].default or 0)
        with _naming(setting):
            return _parse_integer(setting.text)

    def duration(self, name: str) -> float | None:
        setting = self.find(name)
        if setting is None:
            return None
        with _naming(setting):
            return parse_duration(setting.text)

    def share(self, name: str) -> float | None:
        """A part of a whole: 0.5 or 50%."""
        setting = self.find(name)
        if setting is None:
            return None
        with _naming(setting):
            return _parse_share(setting.text)

    def of_job(self, name: str) -> Any:
        """The value of an option of a job, as the API takes it."""
        variable = variable_of(name)
        match OPTIONS[name].kind:
            case "integer":
                return self.integer(variable)
            case "seconds":
                found = self.duration(variable)
                return JobSpec._field_defaults[name] if found is None else found
            case "share":
                return self.share(variable)
            case "steps":
                return ",".join(parse_steps(self.text(variable) or ""))
        return self.text(variable)

    def options_of_job(self) -> dict[str, object]:
        """The options that have a variable, as the API takes them. One that is not set and has no default is left
        out: an older daemon may not know it."""
        named = (name for name, option in plain_options().items() if option.variable)
        found = {name: self.of_job(name) for name in named}
        return {name: value for name, value in found.items() if value is not None}

    def budget(self) -> tuple[Budget, Setting | None, Setting | None]:
        """The job's budget, and the settings it came from. In a job the variables tell that job's budget: who says one
        of the two for a job inside it means neither of those."""
        request, limit = self.find("GPUSHARE_REQUEST"), self.find("GPUSHARE_LIMIT")
        if "GPUSHARE_JOB" in self.environ and request is not None and limit is not None:
            if request.name and not limit.name:
                request = None
            elif limit.name and not request.name:
                limit = None
        burst_only = limit is not None and limit.dialect is Dialect.RUNAI
        budget = Budget.of(
            request.quantity() if request else None,
            limit.quantity() if limit else None,
            limit_is_burst_only=burst_only,
        )
        return budget, request, limit

    def overruled_aliases(self, name: str, winner: Quantity) -> list[str]:
        """Variables of other products that disagree with the chosen value.

        `run` removes them from its child's environment: the library reads them, too, and would warn in each process.
        """
        found = self._in_environment(BY_NAME[name])
        return [setting.name for setting in found if setting.name != name and _value(setting) != winner]

    def _in_environment(self, variable: Variable) -> Iterator[Setting]:
        text = self._value_of(variable.name)
        if text is not None:
            yield Setting(text, f"{variable.name}={text}", variable.name)
        for alias in variable.aliases:
            for setting in self._alias_settings(alias):
                # HAMi's 0 means no limit, as if it were not set.
                if alias.dialect is not Dialect.HAMI or not _is_none(setting):
                    yield setting

    def _alias_settings(self, alias: Alias) -> Iterator[Setting]:
        found = [(alias.name, self._value_of(alias.name))]
        if alias.per_device:
            # A job has one limit for each of its GPUs. Of several values take the lowest.
            found += sorted(
                ((name, self._value_of(name)) for name in self.environ if _is_per_device(name, alias.name)),
                key=lambda item: _sort_key(item[1], alias.dialect),
            )
        for name, text in found:
            if text is not None:
                yield Setting(text, f"{name}={text}", name, alias.dialect)

    def _value_of(self, name: str) -> str | None:
        return self.environ.get(name, "").strip(BLANKS) or None  # scripts unset a variable by an empty value

    def _in_files(self, variable: Variable) -> Setting | None:
        for path, values in self.files:
            if variable.in_file and variable.key in values:
                return Setting(values[variable.key], f"{path}: {variable.key}")
        return None

    def _warn_of_disagreement(self, found: list[Setting]) -> None:
        for other in found[1:]:
            if _value(other) != _value(found[0]):
                text = f"{_assignment(found[0])} and {_assignment(other)} disagree: the first counts"
                if text not in self.warnings:
                    self.warnings.append(text)
                return


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A warning for each unknown variable that looks like ours, with the nearest known name."""
    return [_unknown(name) for name in sorted(environ) if name.startswith(PREFIX) and name not in BY_NAME]


def _unknown(name: str) -> str:
    from gpushare.nearest import nearest

    # Compare without the prefix, which would make all names similar.
    known = [variable.name.removeprefix(PREFIX) for variable in VARIABLES]
    near = nearest(name.removeprefix(PREFIX), known)
    return f"there is no variable {name}" + (f": did you mean {PREFIX}{near[0]}?" if near else "")


def _parse_integer(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number", code="bad_integer", hint="write 10, 0 or -5") from None
    if abs(value) > 2**31 - 1:
        raise UsageError(f"{text} is too far from 0", code="bad_integer")
    return value


def _parse_share(text: str) -> float:
    number, percent = (text[:-1], 100) if text.endswith("%") else (text, 1)
    try:
        value = float(number) / percent
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:  # nan, too
        raise UsageError(f"{text!r} is no part of the time", code="bad_share", hint="write 0.5 or 50%, at most 1")
    return value


def _is_per_device(name: str, base: str) -> bool:
    index = name.removeprefix(f"{base}_")
    return index != name and index.isascii() and index.isdigit()


def _sort_key(text: str | None, dialect: Dialect) -> tuple[int, int]:
    try:
        quantity = Quantity.parse(text or "", dialect)
    except UsageError:
        return (0, 0)  # first, so that a wrong value is refused and not skipped
    return (2, 0) if quantity.kind is Kind.NONE else (1, quantity.value)


def _is_none(setting: Setting) -> bool:
    try:
        return setting.quantity().kind is Kind.NONE
    except UsageError:
        return False


def _value(setting: Setting) -> Quantity | str:
    try:
        return setting.quantity()
    except UsageError:
        return setting.text


def _assignment(setting: Setting) -> str:
    value = _value(setting)
    shown = f" ({format_bytes(value.value)})" if isinstance(value, Quantity) and value.kind is Kind.BYTES else ""
    return f"{setting.name}={setting.text}{shown}"
