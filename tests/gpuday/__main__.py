"""A day with a GPU: 29 checks, each with a time limit, one line of JSON each and a report (make gpu-day).

    python -m gpuday --part 1                         the first ten minutes
    python -m gpuday --part 2                         the second
    python -m gpuday --driver sim                     the same on the software driver
    python -m gpuday --driver sim --sim SETTINGS      on one that behaves otherwise
    python -m gpuday --check captures                 one check; may be repeated

Writes OUT/gpu-day-PART.jsonl, a line as each check ends, and OUT/gpu-day-PART.md. Installs and downloads nothing, and
leaves the settings of the GPU as they are. Ends with 0 if all is as assumed, 1 if a check failed, hung or found
otherwise, 2 if there is nothing to ask.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from gpuday import runner, table
from gpuday.day import has_module
from gpuday.judge import SIDES, Result, exit_status, judge, told
from gpuday.report import Recorded, report

SOFTWARE = Path(__file__).with_name("software.json")
QUICK_SCALE = 0.02
OF_THE_MACHINE = ("kernel", "sandbox", "container", "doctor")
"""Answers that say nothing about a driver. They are not kept."""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpuday", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", type=int, choices=table.PARTS, help="only this half of the day")
    parser.add_argument("--check", action="append", default=[], metavar="NAME", help="only this check; may be repeated")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="only this part of a check")
    parser.add_argument("--quick", action="store_true", help="the short form: a few checks, seconds")
    parser.add_argument("--driver", choices=("nvidia", "sim"), default="nvidia")
    parser.add_argument("--sim", default="memory=16Gi", metavar="SETTINGS", help="GPUSHARE_SIM of the software driver")
    parser.add_argument("--python", help="the Python that has PyTorch  [default: one that has it]")
    parser.add_argument("--scale", type=float, default=1.0, help="of the time that repeated work takes")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="time limit of each check, not the table's")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", "gpu-day")), help="directory for record and report"
    )
    parser.add_argument("--table", type=Path, default=table.FILE, help=argparse.SUPPRESS)
    parser.add_argument(
        "--software", type=Path, default=SOFTWARE, help="answers of the software driver to compare with"
    )
    parser.add_argument("--keep-as-software", action="store_true", help="write this run's answers to that file instead")
    return parser.parse_args(arguments)


def chosen(options: argparse.Namespace) -> tuple[table.Check, ...]:
    """Raises SystemExit if a check that is named does not exist."""
    checks = table.load(options.table)
    unknown = set(options.check) - {check.name for check in checks}
    if unknown:
        raise SystemExit(f"gpuday: there is no check {', '.join(sorted(unknown))}")
    return tuple(
        check
        for check in checks
        if (not options.check or check.name in options.check)
        and (options.part is None or check.part == options.part)
        and (not options.quick or check.quick)
    )


def no_gpu(driver: str) -> str | None:
    """Why there is nothing to ask."""
    if driver == "nvidia" and not Path("/dev/nvidiactl").exists():
        return "no NVIDIA driver is loaded (/dev/nvidiactl is missing)"
    return None


def python_with_frameworks() -> str:
    """This Python, or the first on the path that has PyTorch."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PYTHONPATH": os.environ.get("GPUDAY_PYTHONPATH", "")}
    found = [sys.executable, *filter(None, [shutil.which("python3")]), "/usr/bin/python3"]
    return next((python for python in found if has_module(python, ("torch",), environment)), sys.executable)


def recorded(file: Path) -> Recorded:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def play(options: argparse.Namespace, checks: tuple[table.Check, ...], software: Recorded, base: Path) -> list[Result]:
    """Runs the checks in their order. Each has its line in the record, and its place in the report, when it ends."""
    machine = runner.Machine(
        driver=options.driver,
        settings=options.sim,
        python=options.python or python_with_frameworks(),
        scale=QUICK_SCALE if options.quick else options.scale,
        only=tuple(options.only),
        binaries=os.environ.get("GPUDAY_BINARIES", ""),
    )
    results: list[Result] = []
    with base.with_suffix(".jsonl").open("w") as lines:
        for check in checks:
            result = judge(check, runner.run(check, machine, options.limit), software.get(check.name, {}))
            lines.write(json.dumps(result.as_json()) + "\n")
            lines.flush()
            print(f"{result.number:2} {result.name:20} {result.state:10} {result.seconds:6.1f} s", flush=True)
            for assumption, answers in told(result.findings):
                print(f"     {assumption}", *(f"       {answer}" for answer in answers), sep="\n", flush=True)
            if result.error:
                print(f"     {result.error.splitlines()[-1]}", flush=True)
            results.append(result)
            base.with_suffix(".md").write_text(report(title(results, options), checks, results, software))
    return results


def answers_of(result: Result) -> dict[str, dict[str, Any]]:
    """What is kept of a run on the software driver."""
    return {
        side: {name: value for name, value in result.side(side).items() if name not in OF_THE_MACHINE}
        for side in SIDES
        if result.side(side)
    }


def title(results: list[Result], options: argparse.Namespace) -> str:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    values = results[0].values if results and results[0].name == "surroundings" else {}
    what = f"{values.get('GPU', options.driver)}, driver {values.get('driver', '?')}" if values else options.driver
    part = f", part {options.part}" if options.part else ""
    return f"{today}, a day with a GPU{part}: {what}, kernel {platform.release()}"


def end(*_: object) -> NoReturn:
    """On SIGTERM: as for any other error, the processes of the check are ended first."""
    raise SystemExit(1)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, end)
    checks = chosen(options)
    reason = no_gpu(options.driver) if checks else "no check is chosen"
    if reason is not None:
        print(f"nothing is asked: {reason}; --driver sim runs the checks on the software driver")
        return 2
    software = {} if options.keep_as_software else recorded(options.software)
    options.out.mkdir(parents=True, exist_ok=True)
    base = options.out / (f"gpu-day-{options.part}" if options.part else "gpu-day")
    results = play(options, checks, software, base)
    if options.keep_as_software:
        kept = recorded(options.software) | {result.name: answers_of(result) for result in results}
        options.software.write_text(json.dumps(kept, indent=1) + "\n")
    status = exit_status(results)
    said = {0: "all is as assumed", 1: "not all is as assumed", 2: "nothing was answered"}[status]
    print(f"{base.with_suffix('.md')}: {len(results)} checks, {said}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
