"""A job's specification. Every option of a job is declared here, and only here.

A declaration is a field of JobSpec with its type and default, and an entry of OPTIONS with its help and its bounds. The
rest is derived from the two: the body of `POST /v1/jobs`, the API's view of a job, the state file, the option of
`gpushare run`, the variable GPUSHARE_NAME, and the key of configuration files and profiles. To add an option, declare
it, and use `job.spec.FIELD` where it takes effect.

JobSpec is a NamedTuple because `gpushare run` imports this file at each start: a dataclass of this size takes 1.5 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from gpushare.quantity import Quantity
from gpushare.reclaim_steps import USUAL_STEPS, ReclaimStep

__all__ = ["FOREVER", "LONGEST_GRACE", "OPTIONS", "PRIORITY", "JobSpec", "Option", "from_view", "view"]

FOREVER = 10 * 365 * 24 * 3600.0
"""Seconds: longer than any job."""
LONGEST_GRACE = 24 * 3600.0
"""Seconds."""
PRIORITY = (
    "Whole number. Jobs of the lowest priority are stopped first, a higher one only if the loans of all lower ones "
    "are not enough."
)
"""The order of the daemon's planner, in users' words."""

Kind = Literal["text", "texts", "integer", "seconds", "share", "flag", "amount", "steps"]


class JobSpec(NamedTuple):
    """What a user asked for, per GPU, with the amounts as the user wrote them."""

    name: str
    uid: int
    user: str
    command: tuple[str, ...]
    request: Quantity
    limit: Quantity
    gpus: int = 1
    """How many GPUs the daemon chooses; 0: none now, the budget holds on each GPU that the job opens."""
    devices: tuple[str, ...] | None = None
    """The only GPUs to choose from, in the user's order; None: any."""
    priority: int = 0
    grace: float | None = None
    """Seconds between SIGTERM and SIGKILL; None: the daemon's default."""
    lend: bool = True
    """False: the job's unused request is not lent to others."""
    min_run_time: float = 0.0
    """Seconds after its start in which the job is never a victim."""
    on_reclaim: tuple[ReclaimStep, ...] = USUAL_STEPS
    """The reclaim steps that the job wants, in their order; kill is always the last."""
    request_source: str = ""
    """The option, variable or file that the request comes from."""
    limit_source: str = ""
    reservation: str = ""
    """The reservation that it starts in, by id."""
    observe: bool = False
    """Its programs run without the library. The daemon only shows what NVML shows of them."""
    compute: float | None = None
    """The part of a GPU's time that it shall have while others want to compute, too; None: of what the others leave."""
    exclusive: float | None = None
    """Seconds that it computes alone at a stretch, if others want to compute, too; None: as the node's settings say."""
    idle_release: float | None = None
    """Seconds without computing after which it gives back what it does not use, as the administrator's policy says;
    None: never."""


class Option(NamedTuple):
    """How users and programs give one field of JobSpec."""

    kind: Kind
    least: int = 0
    """For an integer."""
    most: float = 0
    """For an integer and for seconds; for a text the number of characters."""
    plain: bool = True
    """The API takes the field as it is. False: the API's handler makes it from several fields."""
    shown: bool = True
    """It is in the API's view of a job."""
    variable: str = ""
    """What its variable means, for the documentation; empty: there is no variable."""
    help: str = ""
    """The help of its option; empty: there is no option. A flag's option, --no-NAME, turns it off."""
    metavar: str = ""
    for_kernels: bool = False
    """`gpushare kernel install` has the option, too."""


MOST_NAME = 256
"""Letters."""

OPTIONS: Mapping[str, Option] = {
    "name": Option(
        "text",
        most=MOST_NAME,
        plain=False,
        variable="name of the job in ps and in messages",
        help="Name of the job.",
        metavar="NAME",
    ),
    "uid": Option("integer", most=2**32 - 1, plain=False),
    "user": Option("text", plain=False),
    "command": Option("texts", plain=False),
    "request": Option(
        "amount",
        plain=False,
        shown=False,
        variable="memory guaranteed on each GPU: 4Gi, 4G, 0.25, 25%, none",
        help="Memory guaranteed on each GPU: 4Gi, 0.25, 25%, none.",
        metavar="AMOUNT",
        for_kernels=True,
    ),
    "limit": Option(
        "amount",
        plain=False,
        shown=False,
        variable="the most memory on each GPU: 14Gi, 0.5, max",
        help="The most on each GPU. What it uses above its request is borrowed.",
        metavar="AMOUNT",
        for_kernels=True,
    ),
    "gpus": Option("integer", most=64, plain=False, shown=False),
    "devices": Option("texts", plain=False, shown=False),
    "priority": Option(
        "integer",
        least=-(2**31),
        most=2**31 - 1,
        variable="whole number; lower priorities are stopped first",
        help=PRIORITY,
        metavar="N",
        for_kernels=True,
    ),
    "grace": Option(
        "seconds",
        most=LONGEST_GRACE,
        variable="time between SIGTERM and SIGKILL when memory is asked back",
        help="Time from SIGTERM to SIGKILL when memory is asked back: 5s, 500ms, 2m. "
        "At most 28s, because owners wait 30s.",
        metavar="TIME",
        for_kernels=True,
    ),
    "on_reclaim": Option(
        "steps",
        variable="how borrowed memory may be asked back: trim, hook, suspend, term, kill",
        help="The reclaim steps before its loan is taken: some of trim,hook,suspend,term,kill, in this order.  "
        "[default: trim,term,kill; hook, too, if there is one]",
        metavar="STEPS",
    ),
    "min_run_time": Option(
        "seconds",
        most=FOREVER,
        shown=False,
        variable="the job is not stopped for others before it has run this long",
        help="The job is not stopped for others before it has run this long.",
        metavar="TIME",
    ),
    "reservation": Option(
        "text",
        most=64,
        plain=False,
        shown=False,
        help="Use memory that `gpushare reserve` has kept.",
        metavar="NAME",
    ),
    "lend": Option("flag", help="Never lend this job's unused memory.", for_kernels=True),
    "compute": Option(
        "share",
        variable="the part of the GPU's time while others compute, too: 0.5",
        help="The part of the GPU's time that it has while others compute, too: 0.5. Only where jobs take turns.",
        metavar="PART",
        for_kernels=True,
    ),
    "exclusive": Option(
        "seconds",
        most=FOREVER,
        variable="how long it computes alone at a stretch while others wait: 10s",
        help="Compute alone for so long at a stretch: 10s. Then others have turns. Only where jobs take turns.",
        metavar="TIME",
    ),
    "request_source": Option("text", plain=False),
    "limit_source": Option("text", plain=False),
    "observe": Option("flag", plain=False, shown=False),
    "idle_release": Option("seconds", most=FOREVER, plain=False, shown=False),
}
"""One line for each field of JobSpec. Documentation and help list them in this order."""


def variable_of(name: str) -> str:
    """The environment variable of an option."""
    return f"GPUSHARE_{name.upper()}"


def default_text(name: str) -> str | None:
    """An option's default as a user would write it; None if it cannot be written."""
    default: Any = JobSpec._field_defaults.get(name)
    match OPTIONS[name].kind:
        case "steps":
            return ",".join(default)
        case "integer":
            return str(default)
    return None


def plain_options() -> Mapping[str, Option]:
    """Options that the wire, the settings and the API take as they are."""
    return {name: option for name, option in OPTIONS.items() if option.plain}


# ---- the API's view --------------------------------------------------------------------------------


def view(spec: JobSpec) -> dict[str, Any]:
    """The options that the API shows of a job, as JSON-able data."""
    shown = {name: getattr(spec, name) for name, option in OPTIONS.items() if option.shown}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in shown.items()}


def from_view(shown: Mapping[str, Any], **hidden: Any) -> JobSpec:
    """The specification of a job that ended, from what the API showed of it. `hidden`: options that are not shown."""
    values = {name: shown[name] for name, option in OPTIONS.items() if option.shown and name in shown}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
        elif value is None and OPTIONS[name].kind == "text":
            values[name] = ""
    return JobSpec(**values, **hidden)
