"""The daemon's settings: a TOML file. Every key has a default; errors name the line and the path of the key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gpushare.errors import GpushareError, UsageError
from gpushare.quantity import Budget, Kind, Quantity, format_bytes, format_duration
from gpushare.reclaim_steps import ReclaimStep
from gpushare.toml_lines import Lines
from gpushared.core import rules
from gpushared.core.policy import Policy
from gpushared.core.rules import UNLIMITED, Rules, Table
from gpushared.core.turns import Terms
from gpushared.system import setting_values
from gpushared.system.address import address_setting

DEFAULT_FILE = Path("/etc/gpushare/gpushared.toml")


@dataclass(frozen=True, slots=True)
class Config(Policy):
    """The core's numbers, which Policy declares with their defaults, and the daemon's own. Bytes and seconds."""

    sample_interval: float = 1.0
    health_interval: float = 60.0
    idle_exit: float = 10.0
    reveal: str = "user"
    """What users see of the jobs of other users: name, user or none."""
    admin_group: str = ""
    """The Unix group whose members see and change all jobs, as root does; empty: root alone."""
    engine_group: str = ""
    """The Unix group whose members place jobs of all users, as root does; empty: root alone."""
    placed_only: bool = False
    """Only jobs that an engine has placed may use GPUs, and those of administrators."""
    metrics_listen: str = ""
    """host:port for /metrics over TCP beside the socket; empty: off."""
    dashboard_port: int = 0
    """The port of localhost where administrators have the dashboard; 0: off."""
    dashboard_read_only: bool = False
    turns: bool = False
    """Jobs take turns in computing for those that ask for it."""
    turn: float = Terms().turn
    longest_turn: float = 30.0
    suspend_memory: int = field(default_factory=lambda: setting_values.host_memory() // 2)
    rules: Rules = field(default_factory=Rules)
    """What each user's jobs may ask for."""

    def policy(self) -> Policy:
        """What the core needs of it."""
        return Policy(**{one.name: getattr(self, one.name) for one in fields(Policy)})


def _most(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    """A reader of maxima: a value as `parse` reads it, or "unlimited"."""

    def most(value: object) -> Any:
        if value == UNLIMITED:
            return None
        try:
            return parse(value)
        except GpushareError as error:
            raise UsageError(f'{error.message}, nor "{UNLIMITED}"', hint=error.hint) from None

    return most


# TOML table and key -> field of Config and how to read it.
_KEYS: Mapping[tuple[str, str], tuple[str, Callable[[object], Any]]] = {
    ("memory", "reserve_share"): ("reserve_share", setting_values.share),
    ("memory", "reserve_least"): ("reserve_least", setting_values.amount),
    ("memory", "chunk"): ("chunk", setting_values.amount),
    ("memory", "sample_interval"): ("sample_interval", setting_values.seconds(0.05)),
    ("reclaim", "claim_timeout"): ("claim_timeout", setting_values.seconds(0.1)),
    ("reclaim", "trim"): ("trim", setting_values.seconds(0.0)),
    ("reclaim", "grace"): ("grace", setting_values.seconds(0.0)),
    ("reclaim", "hook"): ("hook", setting_values.seconds(0.0)),
    ("reclaim", "hook_resume"): ("hook_resume", setting_values.seconds(0.0)),
    ("reclaim", "last_rung"): ("last_step", setting_values.choice(*ReclaimStep, read=ReclaimStep)),
    ("reclaim", "on_breach"): ("on_breach", setting_values.choice("warn", "deny", "kill")),
    ("suspend", "memory"): ("suspend_memory", setting_values.host_amount),
    ("suspend", "runs_after"): ("resume_runs", setting_values.seconds(0.0)),
    ("compute", "turns"): ("turns", setting_values.flag),
    ("compute", "turn"): ("turn", setting_values.seconds(0.02)),
    ("compute", "longest"): ("longest_turn", setting_values.seconds(0.02)),
    ("daemon", "health_interval"): ("health_interval", setting_values.seconds(0.05)),
    ("daemon", "idle_exit"): ("idle_exit", setting_values.seconds(0.0)),
    ("daemon", "reveal"): ("reveal", setting_values.choice("name", "user", "none")),
    ("daemon", "admin_group"): ("admin_group", setting_values.group),
    ("placements", "group"): ("engine_group", setting_values.group),
    ("placements", "required"): ("placed_only", setting_values.flag),
    ("metrics", "listen"): ("metrics_listen", address_setting),
    ("dashboard", "port"): ("dashboard_port", setting_values.port),
    ("dashboard", "read_only"): ("dashboard_read_only", setting_values.flag),
}

# Key of a policy table -> how to read it.
_RULES: Mapping[str, Callable[[object], Any]] = {
    "request": setting_values.request,
    "limit": setting_values.limit,
    "max_request": _most(setting_values.request),
    "max_limit": _most(setting_values.limit),
    "max_gpus": _most(setting_values.count(1)),
    "max_jobs": _most(setting_values.count(0)),
    "max_priority": _most(setting_values.count(-(2**31))),
    "max_grace": _most(setting_values.seconds(0.0)),
    "max_min_run_time": _most(setting_values.seconds(0.0)),
    "max_reservations": _most(setting_values.count(0)),
    "no_lend": setting_values.flag,
    "observe": setting_values.flag,
    "idle_release": _most(setting_values.seconds(1.0)),
}

AMOUNTS_OF_A_JOB = frozenset(("request", "limit"))

NAMED = ("users", "projects", "groups")
"""Tables of policy tables, in the order in which they count."""

AT_THE_NEXT_START = (
    "reserve_share",
    "reserve_least",
    "turns",
    "turn",
    "metrics_listen",
    "dashboard_port",
    "dashboard_read_only",
)
"""A reload does not change these: requests are promised on the reserve, programs run, and sockets are open."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and which of them the file has set."""

    config: Config
    path: Path | None
    from_file: frozenset[str]

    def describe(self) -> str:
        """The effective settings with their sources, as a file that can be read again."""
        lines: list[str] = []
        table = ""
        for (section, key), (name, _) in _KEYS.items():
            if section != table:
                lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
                table = section
            source = str(self.path) if name in self.from_file else "default"
            lines.append(f"{key} = {_write(name, getattr(self.config, name))}  # {source}")
        return "\n".join([*lines, *self._describe_rules()])

    def _describe_rules(self) -> list[str]:
        """The table for all users in full, with its defaults; of the others the keys that they set. A request that
        follows from a limit is told in a comment, and the reverse."""
        said = self.config.rules
        everybody = next((table for table in said.tables if table.path == "$.policy"), Table("$.policy", {}))
        values = {**rules.DEFAULTS, **_with_both(everybody)}
        lines = ["", "[policy]", *(self._rule(everybody, key, values[key]) for key in rules.DEFAULTS)]
        for table in said.tables:
            if table is not everybody:
                lines += ["", f"[{table.path.removeprefix('$.')}]"]
                if table.path.startswith("$.policy.projects."):
                    members = sorted(table.users) + [f"@{group}" for group in sorted(table.groups)]
                    lines.append(f"members = [{', '.join(map(_quoted, members))}]")
                lines += [self._rule(table, key, value) for key, value in _with_both(table).items()]
        return lines

    def _rule(self, table: Table, key: str, value: object) -> str:
        line = f"{key} = {_write_rule(value)}"
        if key in table.values:
            return f"{line}  # {self.config.rules.file}:{table.lines.get(key, 1)}"
        other = {"request": "limit", "limit": "request"}.get(key)
        return f"# {line}: follows from {other}" if other in table.values else f"{line}  # default"


def _with_both(table: Table) -> dict[str, Any]:
    amounts = table.budget
    return {**table.values, **({} if amounts is None else {"request": amounts.request, "limit": amounts.limit})}


def load(path: Path | None) -> Loaded:
    """Read the file; None: the system's file if it exists, otherwise the defaults."""
    chosen = path if path is not None else (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    if chosen is None:
        return Loaded(Config(), None, frozenset())
    try:
        text = chosen.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {chosen}: {error.strerror}", code="bad_config") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{chosen} is not TOML: {error}", code="bad_config") from None
    values = parse(text, chosen)
    return Loaded(Config(**values), chosen, frozenset(values))


def parse(text: str, path: Path) -> dict[str, Any]:
    """The settings of the file. Raises UsageError with all errors at once, each with its line and the path of its
    key."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        number = int(line[1]) if line else text.count("\n") + 1
        raise UsageError(f"{path}:{number} is not TOML: {error}", code="bad_config") from None
    reader = _Reader(path, Lines(text))
    for section, table in tables.items():
        if section == "policy":
            reader.policy(table)
        else:
            reader.section(section, table)
    if reader.problems:
        raise UsageError(f"{path} has settings that are not accepted", facts=reader.problems, code="bad_config")
    return reader.values


class _Reader:
    """The values, and the errors: ("FILE:LINE", "$.path: why")."""

    def __init__(self, file: Path, lines: Lines) -> None:
        self.values: dict[str, Any] = {}
        self.problems: list[tuple[str, str]] = []
        self._file = file
        self._lines = lines

    def refuse(self, why: str, *keys: str) -> None:
        self.problems.append((f"{self._file}:{self._lines.of(keys)}", f"{_dotted(keys)}: {why}"))

    def section(self, section: str, table: object) -> None:
        known = [name for place, name in _KEYS if place == section]
        if not known:
            self.refuse(f"no such table; there are {_sections()}", section)
        elif not isinstance(table, dict):
            self.refuse("not a table", section)
        else:
            for key, value in table.items():
                if key not in known:
                    self.refuse(f"no such key; there are {', '.join(known)}", section, key)
                    continue
                name, read = _KEYS[section, key]
                try:
                    self.values[name] = read(value)
                except GpushareError as error:
                    self.refuse(_with_hint(error), section, key)

    def policy(self, table: object) -> None:
        if not isinstance(table, dict):
            self.refuse("not a table", "policy")
            return
        everybody = {key: value for key, value in table.items() if key not in NAMED}
        tables = []
        for kind in NAMED:
            named = table.get(kind, {})
            if not isinstance(named, dict):
                self.refuse(f"not a table of tables [policy.{kind}.NAME]", "policy", kind)
                continue
            tables += [self._named(kind, name, of_name) for name, of_name in named.items()]
        values = self._rules(everybody, ("policy",))
        said = {key for key, value in values.items() if value != rules.DEFAULTS[key]}
        if said & AMOUNTS_OF_A_JOB:  # one of them alone gives the other
            said |= AMOUNTS_OF_A_JOB
        values = {key: value for key, value in values.items() if key in said}
        if values:
            tables.append(Table("$.policy", values, lines=self._lines_of(values, ("policy",))))
        self.values["rules"] = Rules(tuple(one for one in tables if one is not None), str(self._file))

    def _named(self, kind: str, name: str, table: object) -> Table | None:
        keys = ("policy", kind, name)
        if not isinstance(table, dict):
            self.refuse(f"not a table [policy.{kind}.NAME]", *keys)
            return None
        users, groups = frozenset((name,)), frozenset[str]()
        said = dict(table)
        if kind == "groups":
            users, groups = groups, users
        elif kind == "projects":
            users, groups = self._members(said.pop("members", None), keys)
        values = self._rules(said, keys)
        return Table(_dotted(keys), values, users, groups, self._lines_of(values, keys))

    def _members(self, members: object, keys: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str]]:
        named = isinstance(members, list) and all(isinstance(one, str) and one.strip("@") for one in members)
        if not members or not named:
            at = (*keys, "members") if members is not None else keys
            self.refuse('members is not a list of users and "@groups", such as ["alice", "@vision"]', *at)
            return frozenset(), frozenset()
        assert isinstance(members, list)
        users = frozenset(one for one in members if not one.startswith("@"))
        return users, frozenset(one[1:] for one in members if one.startswith("@"))

    def _rules(self, table: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
        values = {}
        for key, value in table.items():
            read = _RULES.get(key)
            if read is None:
                more = NAMED if keys == ("policy",) else ("members",) if keys[1] == "projects" else ()
                self.refuse(f"no such key; there are {', '.join([*_RULES, *more])}", *keys, key)
                continue
            try:
                values[key] = read(value)
            except GpushareError as error:
                self.refuse(_with_hint(error), *keys, key)
        try:
            Budget.of(values.get("request"), values.get("limit"))
        except GpushareError as error:
            self.refuse(error.message, *keys, "request")
        return values

    def _lines_of(self, values: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, int]:
        return {key: self._lines.of((*keys, key)) for key in values}


def _with_hint(error: GpushareError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _dotted(keys: tuple[str, ...]) -> str:
    plain = [key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quoted(key) for key in keys]
    return ".".join(["$", *plain])


def _quoted(text: str) -> str:
    """A basic string of TOML."""
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{escaped}"'


def _sections() -> str:
    return ", ".join(dict.fromkeys([*(section for section, _ in _KEYS), "policy"]))


AMOUNTS = ("reserve_least", "chunk", "suspend_memory")
"""Settings in bytes."""


DURATIONS = (
    "claim_timeout",
    "trim",
    "hook",
    "hook_resume",
    "grace",
    "resume_runs",
    "turn",
    "longest_turn",
    "sample_interval",
    "health_interval",
    "idle_exit",
)
"""Settings in seconds."""


def _write(field: str, value: object) -> str:
    if field in AMOUNTS and isinstance(value, int):
        return f'"{Quantity.plain(Kind.BYTES, value)}"' if value else "0"
    if isinstance(value, bool):
        return str(value).lower()
    return _quoted(value) if isinstance(value, str) else str(value)


def _write_rule(value: object) -> str:
    match value:
        case None:
            return f'"{UNLIMITED}"'
        case bool():
            return str(value).lower()
        case Quantity():
            return f'"{value.canonical()}"'
    return str(value)


def cautions(config: Config) -> list[str]:
    """Settings that break a promise to owners, for the log and --check-config."""
    policy = config.policy()
    after = policy.claim_timeout - policy.longest_protection  # a grace is cut to what is left
    most = {f"{table.path}.max_min_run_time": table.values for table in config.rules.tables}
    said = {rule: values["max_min_run_time"] for rule, values in most.items() if "max_min_run_time" in values}
    said.setdefault("$.policy.max_min_run_time", rules.DEFAULTS["max_min_run_time"])
    return [
        f"{rule} is {'unlimited' if seconds is None else format_duration(seconds)}: a borrower may be protected for"
        f" longer than claims wait (claim_timeout {format_duration(policy.claim_timeout)}, of which"
        f" {format_duration(after)} go to trim and teardown), and allocations within a request fail meanwhile"
        for rule, seconds in said.items()
        if seconds is None or seconds > policy.longest_protection
    ]


def changes(old: Config, new: Config) -> list[str]:
    """The changes of a reload, for the log."""
    names = [one.name for one in fields(Config) if one.name != "rules"]
    changed = [
        f"{_key(name)}: {_show(name, getattr(old, name))} -> {_show(name, getattr(new, name))}"
        + (" (at the next start)" if name in AT_THE_NEXT_START else "")
        for name in names
        if getattr(old, name) != getattr(new, name)
    ]
    before, after = _flat(old.rules), _flat(new.rules)
    for rule in sorted(before.keys() | after.keys()):
        if before.get(rule) != after.get(rule):
            changed.append(f"{rule}: {before.get(rule, 'not said')} -> {after.get(rule, 'not said')}")
    return changed


def _key(field: str) -> str:
    """The name of a setting in the log."""
    return next((key for (_, key), (name, _) in _KEYS.items() if name == field), field)


def _flat(said: Rules) -> dict[str, str]:
    flat = {f"{table.path}.{key}": _write_rule(value) for table in said.tables for key, value in table.values.items()}
    for table in said.tables:
        if table.path.startswith("$.policy.projects."):
            flat[f"{table.path}.members"] = ", ".join([*sorted(table.users), *sorted(table.groups)])
    return flat


def _show(field: str, value: Any) -> str:
    if field in AMOUNTS:
        return format_bytes(value)
    if field in DURATIONS:
        return format_duration(value)
    return str(value)
