"""What a user has said about hooks: `--relief-cmd`, `--relief-url`, `--resume-cmd`, `--resume-url`.

The daemon never learns what they say: it only knows that the job has the reclaim step hook. So a command may name a
key, and nobody else reads it.
"""

from __future__ import annotations

from typing import NamedTuple

from gpushare.env import Settings
from gpushare.errors import UsageError
from gpushare.job_spec import variable_of
from gpushare.reclaim_steps import JOB_STEPS, USUAL_STEPS, ReclaimStep, parse_steps

__all__ = ["Hook", "Hooks", "of"]

NAMES = ("relief", "resume")


class Hook(NamedTuple):
    """What is called: a command for the shell, or a URL. Exactly one of them."""

    cmd: str = ""
    url: str = ""


class Hooks(NamedTuple):
    """A job's; None: it has none."""

    relief: Hook | None
    resume: Hook | None

    def environ(self) -> dict[str, str]:
        """For the process that calls them: not in its command line, which other users may read. Empty: none."""
        found = {name: hook for name, hook in zip(NAMES, self, strict=True) if hook is not None}
        kinds = ((name, kind, getattr(hook, kind)) for name, hook in found.items() for kind in Hook._fields)
        return {_variable(name, kind): text for name, kind, text in kinds if text}

    def steps(self, settings: Settings, *, replaced: bool) -> str:
        """The job's reclaim steps, as the API takes them. `replaced`: by --exec, so that nobody can call a hook, or
        suspend the job. Raises UsageError if they and the hooks contradict each other."""
        text = settings.text(variable_of("on_reclaim")) or ""
        steps = parse_steps(text)
        if replaced and ReclaimStep.SUSPEND in steps:
            _refuse_or_warn(settings)
            steps = tuple(step for step in steps if step is not ReclaimStep.SUSPEND)
        if self.relief is None:
            if ReclaimStep.HOOK in steps:
                hint = "say what to call, with --relief-cmd or --relief-url; or leave the step out"
                raise UsageError(f"the reclaim steps {text} have the step hook, and there is no hook", hint=hint)
        elif replaced:
            raise UsageError("hooks are called by gpushare run, and --exec replaces it", hint="leave out --exec")
        elif settings.find(variable_of("on_reclaim")) is None:
            steps = tuple(step for step in JOB_STEPS if step in (*USUAL_STEPS, ReclaimStep.HOOK))
        elif ReclaimStep.HOOK not in steps:
            raise UsageError(f"the hook is never called: {text} has no step hook", hint="add it to --on-reclaim")
        return ",".join(steps)


def of(settings: Settings) -> Hooks:
    """Raises UsageError if they contradict each other, or if a URL is none."""
    relief, resume = (_hook(settings, name) for name in NAMES)
    if relief is None and resume is not None:
        raise UsageError("a resume hook without a relief hook is never called", hint="add --relief-cmd or --relief-url")
    if relief is not None and relief.url:
        from gpushare.engine_hooks import engine_of

        engine = engine_of(relief.url)
        if resume is None and engine.resume:
            resume = relief
    return Hooks(relief, resume)


def _refuse_or_warn(settings: Settings) -> None:
    """The step suspend with --exec: an error where both were typed; one from the environment or a file is left out."""
    what = "a job is suspended by a process that gpushare run starts, and --exec replaces gpushare run"
    if settings.flags.get(variable_of("on_reclaim")) is not None:
        raise UsageError(what, hint="leave out --exec, or the step suspend")
    said = f"the step suspend is left out: {what}"
    if said not in settings.warnings:
        settings.warnings.append(said)


def from_environ(environ: dict[str, str]) -> Hooks:
    """As environ() has written them."""
    found = ({kind: environ.get(_variable(name, kind), "") for kind in Hook._fields} for name in NAMES)
    relief, resume = (Hook(**texts) if any(texts.values()) else None for texts in found)
    return Hooks(relief, resume)


def _hook(settings: Settings, name: str) -> Hook | None:
    cmd, url = (settings.find(_variable(name, kind)) for kind in Hook._fields)
    if cmd is not None and url is not None:
        raise UsageError(f"{cmd.source} and {url.source} both say what to call", hint="leave one out")
    if url is not None:
        from gpushare.engine_hooks import engine_of, split

        engine = engine_of(url.text)
        if name == "resume" and not engine.resume and split(url.text)[0]:
            what = f"{url.source}: {split(url.text)[0]} has no call to resume; its next request takes memory again"
            raise UsageError(what, hint="leave it out")
        return Hook(url=url.text)
    if cmd is not None and not cmd.text.strip():
        raise UsageError(f"{cmd.source}: the command is empty", hint="write a line for /bin/sh, or leave it out")
    return None if cmd is None else Hook(cmd=cmd.text)


def _variable(name: str, kind: str) -> str:
    return variable_of(f"{name}_{kind}")
