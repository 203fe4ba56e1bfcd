"""gpushare explain: why memory is short, what happened to a job, or what a message means."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import click

from gpushare.api import Explanation, GpuPressure, Job, JobGpu, Killed, Outcome, Record, Story, Waiting
from gpushare.cli import complete
from gpushare.cli import output as _output
from gpushare.cli.status import ailments
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob
from gpushare.killed import cause, stopped
from gpushare.locate import find
from gpushare.offline_history import ask
from gpushare.quantity import format_bytes, format_duration

if TYPE_CHECKING:
    from gpushare.message_catalog import Found, Meaning

READABLE = 100
"""Most columns of a text."""
LAST = 20
"""Records that are shown below the present state."""


@click.command(short_help="Explain a shortage, a job's story, or a message.")
@click.argument("subject", required=False, metavar="[JOB | CODE | -]", shell_complete=complete.subjects)
@_output.option("table", "json")
def command(subject: str | None, output: str) -> None:
    """Without an argument: why memory is short right now.

    With JOB (its id, the beginning of it, its name, or a pid): its story. With CODE, as in -o json: what the code
    means, and what to do. With -: find gpushare's messages in standard input, and show each with its numbers, what it
    means, and what to do.

    \b
    gpushare explain train
    gpushare explain not_free
    python train.py 2>&1 | tee log; gpushare explain - < log
    """
    if subject is None:
        explanation = find(load_settings()).client().explain()
        if output == "json":
            _output.print_json("explain", dict(explanation))
        else:
            _print_now(explanation)
    elif subject == "-":
        _explain_input(output)
    else:
        _explain(subject, output)


def _explain(subject: str, output: str) -> None:
    """Look for a job first: a job may have a code as its name."""
    from gpushare.message_catalog import meanings

    try:
        story = ask(load_settings(), lambda source: source.story(source.find_job(subject)["id"]), _output.note)
    except (DaemonUnreachable, NoSuchJob):
        meaning = meanings().get(subject)
        if meaning is None:
            raise
        if output == "json":
            _output.print_json("meaning", _meaning(meaning))
        else:
            _print_meaning(meaning)
        return
    if output == "json":
        _output.print_json("explain", dict(story))
    else:
        _print_story(story)


def _explain_input(output: str) -> None:
    from gpushare.message_catalog import messages_in

    if sys.stdin.isatty():
        _output.echo("paste the messages, then Ctrl-D", err=True)
    with open(0, encoding="utf-8", errors="replace", closefd=False) as lines:
        found = messages_in(lines)
    if not found:
        raise GpushareError(
            "there is no message of gpushare in that",
            code="no_message",
            hint="they are on standard error: COMMAND 2>&1 | gpushare explain -",
        )
    if output == "json":
        messages = [
            {**_meaning(one.meaning), "message": one.message, "facts": one.facts, "hint": one.hint, "count": one.count}
            for one in found
        ]
        _output.print_json("messages", {"messages": messages})
        return
    for number, one in enumerate(found):
        if number:
            _output.echo()
        _print_found(one)


def _meaning(meaning: Meaning) -> dict[str, object]:
    return {"code": meaning.code, "what": meaning.what, "remedy": meaning.remedy}


def _print_found(found: Found) -> None:
    times = f" ({found.count} times; the last has these numbers)" if found.count > 1 else ""
    _output.echo(f"{found.meaning.code}: {found.message}{times}")
    width = max((len(label) for label, _ in found.facts), default=0)
    for label, text in found.facts:
        first, *more = text.splitlines() or [""]
        _output.echo(f"  {label:<{width}}  {first}".rstrip())
        for line in more:
            _output.echo(f"{'':{width + 4}}{line}")
    _output.echo()
    _print_what(found.meaning)
    if found.hint:
        _output.echo(f"hint: {found.hint}")


def _print_meaning(meaning: Meaning) -> None:
    _output.echo(f"{meaning.code}: messages with these words")
    for message in meaning.messages:
        _output.echo(f"  …{message}" if message.startswith(":") else f"  {message}")  # … for the differing beginning
    _output.echo()
    _print_what(meaning)


def _print_what(meaning: Meaning) -> None:
    for paragraph in (*meaning.what.splitlines(), f"What to do: {meaning.remedy}"):
        width = min(_output.terminal_size().columns, READABLE)
        _output.echo(textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False))


def _print_now(explanation: Explanation) -> None:
    for gpu in explanation["gpus"]:
        held = f"{format_bytes(gpu['usage'])} used by jobs ({format_bytes(gpu['lent'])} of it lent)"
        outside = f", {format_bytes(gpu['unmanaged'])} outside gpushare" if gpu["unmanaged"] else ""
        coming = f", {format_bytes(gpu['returning'])} coming back" if gpu["returning"] else ""
        _output.echo(
            f"GPU {gpu['index']} ({gpu['name']}): {format_bytes(gpu['free'])} free of"
            f" {format_bytes(gpu['capacity'])}, {held}{outside}{coming}"
        )
        for line in ailments(gpu, hints=True):
            _output.echo(f"  {line}")
        for one in explanation["pressure"]:
            if one["uuid"] == gpu["uuid"] and one["some"]["total"]:
                _output.echo(f"  {_stalls(one)}")
    _output.echo()
    _print_waiting(explanation["waiting"], "no job waits for memory")
    if explanation["records"]:
        _output.echo("\nlatest events (`gpushare events -n 1000` lists more)")
        _print_records(explanation["records"][-LAST:], names=True)


def _stalls(one: GpuPressure) -> str:
    """Pressure in a sentence, as Linux' pressure stall information: `some` is the time in which any owner waited."""
    some, full = one["some"], one["full"]
    lately = f"{some['avg10']:.0%} of the last 10 s, {some['avg300']:.0%} of the last 5 min"
    text = f"owners have waited {format_duration(round(some['total'], 2))} for it in all: {lately}"
    return text + (f"; for {format_duration(round(full['total'], 2))} all jobs waited" if full["total"] else "")


def _print_waiting(waiting: list[Waiting], none: str | None) -> None:
    if not waiting and none:
        _output.echo(none)
    for one in waiting:
        _output.echo(one["message"])
        width = max((len(label) for label, _ in one["facts"]), default=0)
        for label, text in one["facts"]:
            _output.echo(f"  {label:<{width}}  {text}")
        if one["hint"]:
            _output.echo(f"hint: {one['hint']}")


def _print_story(story: Story) -> None:
    job = story["job"]
    _output.echo(f"job {job['name']} ({job['id']}) of {job['user']}: {job['state']}")
    for gpu in job["gpus"]:
        if job["state"] == "ended":
            bounds = f"request {format_bytes(gpu['request'])}, limit {format_bytes(gpu['limit'])}"
            _output.echo(f"  GPU {gpu['index']}  used {format_bytes(gpu['peak'])} at most; {bounds}")
            continue
        if job["state"] == "observed":
            most = format_bytes(gpu["peak"])
            _output.echo(
                f"  GPU {gpu['index']}  uses {format_bytes(gpu['usage'])}, {most} at most; only observed: no budget"
            )
            continue
        loan = f", {format_bytes(gpu['loan'])} of it on loan" if gpu["loan"] else ""
        _output.echo(
            f"  GPU {gpu['index']}  uses {format_bytes(gpu['usage'])}{loan}; request {format_bytes(gpu['request'])},"
            f" limit {format_bytes(gpu['limit'])}; could get {format_bytes(gpu['grantable'])} more now"
        )
        if gpu.get("turn"):
            _output.echo(f"  GPU {gpu['index']}  {_turn(job, gpu)}")
        if gpu["health"] != "ok":
            _output.echo(f"  GPU {gpu['index']}  is {gpu['health']}; `gpushare status` says why")
    if job["state"] == "stopped":
        borrows = any(gpu["loan"] for gpu in job["gpus"])
        cannot = "; until then it cannot act when its loan is wanted back" if borrows else ""
        _output.echo(f"  stopped by Ctrl-Z or SIGSTOP: `fg` in its shell or `kill -CONT` continues it{cannot}")
    if job["outcome"] is not None:
        _output.echo(f"  {_ending(job['outcome'])}")
    if story["waiting"]:
        _output.echo()
        _print_waiting(story["waiting"], None)
    _output.echo()
    if not story["story"]:
        _output.echo("nothing is recorded")
    _print_records(story["story"])


TURNS = {
    "holds": "it has the turn now",
    "leaving": "its turn is over, and the GPU still does what it has launched",
    "waits": "its launches wait for its turn",
    "free": "nobody else wants to compute just now",
    "suspended": "it takes none while it is suspended",
    "not_held": "it does not wait for turns: it was started without the library that can, or uses several GPUs",
}


def _turn(job: Job, gpu: JobGpu) -> str:
    asked = [f"compute {job['compute']:g}"] if job.get("compute") else []
    alone = job.get("exclusive")
    asked += [f"alone for {format_duration(alone)} at a stretch"] if alone else []
    said = f" ({', '.join(asked)})" if asked else ""
    had = f"; turns of {format_duration(round(gpu.get('turn_time', 0.0), 1))} in all"
    return f"jobs take turns in computing{said}: {TURNS.get(gpu['turn'] or '', gpu['turn'])}{had}"


def _ending(outcome: Outcome) -> str:
    if not outcome.get("seen", True):
        unseen = "its end was not seen: the daemon or the node ended before it"
        return unseen if outcome["killed"] is None else f"{_why_stopped(outcome['killed'])}; {unseen}"
    at = outcome.get("ended")
    return _how_it_ended(outcome) + (f", at {_output.clock(at)}" if at else "")


def _how_it_ended(outcome: Outcome) -> str:
    lasted = format_duration(round(outcome["duration"], 1))
    if outcome["killed"] is not None:
        return _why_stopped(outcome["killed"], f" after {lasted}")
    if outcome["signal"] is not None:
        return f"ended after {lasted} by signal {outcome['signal']}"
    return f"ended after {lasted}" + (f", exit {outcome['exit_code']}" if outcome["exit_code"] is not None else "")


def _why_stopped(killed: Killed, after: str = "") -> str:
    more = f", {format_bytes(killed['got'])} returned" if cause(killed["code"]).owes else f"; {killed['reason']}"
    return stopped(killed, after) + more


def _print_records(records: list[Record], *, names: bool = False) -> None:
    for record in records:
        first, *more = record["text"].splitlines() or [""]
        whose = f"{record['name']}: " if record["name"] and names else ""
        _output.echo(f"{_output.clock(record['time'])}  {whose}{first}")
        for line in more:
            _output.echo(f"          {line}")
