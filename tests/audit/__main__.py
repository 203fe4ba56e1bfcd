"""An audit from outside: random jobs on a private node, judged by their own results and by NVML alone.

    python -m audit --seconds 600 --seed 1            acts of all kinds, one after the other
    python -m audit --seed 1 --act 12                 the twelfth of these again
    python -m audit --kind siege --seconds 60         one kind

Ends with 1 if a law was broken. The laws are in law.py, the kinds in kinds.py. What the daemon says about itself is
never asked, but for `gpushare status` at the end of an act, which must work.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from audit import report
from audit.act import Act, Result, Violation
from audit.kinds import KINDS

PR_SET_PDEATHSIG = 1


def parse() -> argparse.Namespace:
    listed = "\n".join(f"  {kind.name:10} {kind.about}" for kind in KINDS.values())
    parser = argparse.ArgumentParser(
        prog="audit", description=__doc__, epilog=listed, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600, help="how long, all acts together")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--act", type=int, help="only this one of the acts that the seed gives")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only acts of this kind; may be repeated")
    parser.add_argument("--act-seconds", type=float, help="how long an act is; by default what its kind says")
    parser.add_argument("--json", type=Path, help="write a report there")
    parser.add_argument("--stop", action="store_true", help="end after the first act with a violation")
    parser.add_argument("--accounts", type=int, default=2, help="of how many violations of each law in an act is told")
    parser.add_argument("--verbose", action="store_true", help="say what is done")
    parser.add_argument("--keep", action="store_true", help="keep the directory of each act")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # an act of its own process
    return parser.parse_args()


def kind_of(act: int, options: argparse.Namespace) -> str:
    names = options.kind or [kind.name for kind in KINDS.values() for _ in range(kind.weight)]
    if len(names) == 1:
        return str(names[0])
    order = random.Random(f"{options.seed}/{act // len(names)}").sample(names, len(names))
    return str(order[act % len(names)])


def one(options: argparse.Namespace) -> int:
    """Play one act in this process."""
    kind = KINDS[kind_of(options.act, options)]

    def say(line: str) -> None:
        if options.verbose:
            print(line, file=sys.stderr, flush=True)

    def leave(*_: object) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, leave)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # an audit that is killed takes its act along
    act = Act(kind, f"{options.seed}/{options.act}", options.keep, say)
    if options.keep:
        print(f"kept in {act.ground.directory}", file=sys.stderr)
    result = act.run(options.act_seconds or kind.seconds)
    options.json.write_text(report.as_json([result]))
    return 0


def read(path: Path) -> Result:
    data = json.loads(path.read_text())["acts"][0]
    for name in ("jobs", "deeds", "allocations", "counted", "excused", "notes"):
        data[name] = Counter(data[name])
    data["violations"] = [Violation(**violation) for violation in data["violations"]]
    return Result(**data)


def play(number: int, seconds: float, options: argparse.Namespace, place: Path) -> Result | None:
    """One act in a process of its own: NVML is loaded once a process, with the settings of that act."""
    path = place / f"act-{number}.json"
    command = [
        sys.executable,
        "-m",
        "audit",
        "--one",
        "--seed",
        options.seed,
        "--act",
        str(number),
        "--json",
        str(path),
    ]
    command += [part for kind in options.kind or [] for part in ("--kind", kind)]
    command += ["--act-seconds", str(seconds), *(["--verbose"] if options.verbose else [])]
    command += ["--keep"] if options.keep else []
    status = subprocess.run(command, timeout=seconds + 180).returncode
    if status != 0:
        print(f"act {number} could not be played: status {status}", flush=True)
        return None
    result = read(path)
    path.unlink()
    return result


def replay(number: int, options: argparse.Namespace) -> str:
    kinds = "".join(f" --kind {kind}" for kind in options.kind or [])
    return f"python -m audit --seed {options.seed} --act {number}{kinds}"


def main() -> int:
    options = parse()
    if options.one:
        return one(options)
    end = time.monotonic() + options.seconds
    results: list[Result] = []
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gpushare-audit-report-") as place:
        number = options.act or 0
        while options.act is not None or time.monotonic() < end:
            kind = KINDS[kind_of(number, options)]
            seconds = options.act_seconds or kind.seconds
            if options.act is None:
                seconds = max(5.0, min(seconds, end - time.monotonic()))
            result = play(number, seconds, options, Path(place))
            if result is None:
                failed += 1
            else:
                results.append(result)
                counted = report.listed(result.counted)
                within = report.figures([result])["within_request"]
                print(
                    f"act {number:3} {result.kind:10} {result.seconds:5.0f} s  {sum(result.jobs.values()):4} jobs  "
                    f"{within:8} within  longest wait {result.longest / 1e9:6.3f} s  violations: {counted}",
                    flush=True,
                )
                for violation in report.some(result.violations, options.accounts):
                    print(report.account(result, violation, replay(number, options)), flush=True)
            number += 1
            if options.act is not None or failed > 3 or (options.stop and result and result.counted):
                break
    print(f"\nseed {options.seed}\n{report.text(results)}")
    if options.json:
        options.json.write_text(report.as_json(results))
    return 1 if failed or any(result.counted for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
