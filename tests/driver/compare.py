"""The software driver beside a real one: the same questions to both, and the list of answers that differ.

    python tests/driver/compare.py                      the real driver of this machine, if it has one
    python tests/driver/compare.py --driver PATH        another libcuda.so.1; also GPUSHARE_TEST_DRIVER
    python tests/driver/compare.py --against FILE       answers that were recorded elsewhere
    python tests/driver/compare.py --record FILE        keep the real driver's answers

Exit status: 0 no difference but those that are meant, 1 others, 2 there was nothing to compare with. The last line is
the verdict.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from observe import Driver, Observations, why_no_real_driver
from simbuild import libraries
from simcuda import DRIVER

SETTINGS = "gpus=1,memory=16Gi"

# Differences that are meant, by the names of the questions. Each is said in shim/sim/README.md.
MEANT = {
    r"managed: 64 MiB take before they are touched": "managed memory is charged in full when it is allocated",
}

# Quantities that no two machines share: the factor between them that is let pass, and what is too small to matter. They
# are to be copied into the model (shim/sim/common_model.h, the settings context= and teardown=) when they are far off.
MEASURED = {
    r"contexts: second context takes": (2.0, 1 << 20),
    r"processes: a context of another process takes": (2.0, 1 << 20),
    r"processes: milliseconds from a kill to its memory": (5.0, 100),
}

# What the shim's account rests on: with another answer it would count wrongly.
RELIED_ON = (
    r"captures: a captured alloc takes",
    r"graphs: (a node of|instantiating) \d+ takes",
    r"graphs: second instance of \d+",
    r"host: 16 MiB take of the device",
    r"pool growth: used after the free of \d+",
    r"sharing: an open handle takes",
    r"vmm: (32 MiB take when created|1 GiB of addresses take|release returns|unmap returns with another mapping)",
    r"vmm: unmap of the last returns",
)


@dataclass
class Difference:
    name: str
    software: Any
    real: Any
    meant: str | None

    @property
    def relied_on(self) -> bool:
        return any(re.fullmatch(pattern, self.name) for pattern in RELIED_ON)

    def __str__(self) -> str:
        why = f"   (meant: {self.meant})" if self.meant else ""
        if self.relied_on:
            why += "   (the shim's account rests on this)"
        return f"{self.name}: software {_text(self.software)}, real {_text(self.real)}{why}"


NOT_ASKED = object()


def _text(value: Any) -> str:
    return "did not answer" if value is NOT_ASKED else str(value)


def _entry(table: dict[str, Any], name: str) -> Any:
    return next((value for pattern, value in table.items() if re.fullmatch(pattern, name)), None)


def _agree(name: str, software: Any, real: Any) -> bool:
    measured = _entry(MEASURED, name)
    if measured is None or software is NOT_ASKED or real is NOT_ASKED:
        return bool(software == real)
    factor, small = measured
    low, high = sorted((max(software, small), max(real, small)))
    return bool(high <= low * factor)


def differences(software: Observations, real: Observations) -> Iterator[Difference]:
    names = list(software.values) + [name for name in real.values if name not in software.values]
    for name in names:
        ours, theirs = software.values.get(name, NOT_ASKED), real.values.get(name, NOT_ASKED)
        if not _agree(name, ours, theirs):
            yield Difference(name, ours, theirs, _entry(MEANT, name))


def observe_software(directory: Path) -> Observations:
    place = directory / "software"
    place.mkdir()
    library = libraries(place) / "libcuda.so.1"
    return Driver(str(library), environment={"GPUSHARE_SIM": f"{SETTINGS},pool={directory / 'pool'}"}).observe()


def real_answers(options: argparse.Namespace) -> Observations | str:
    """Or why there are none."""
    if options.against:
        return Observations.load(options.against)
    if not options.driver:
        reason = why_no_real_driver()
        if reason is not None:
            return reason
    try:
        return Driver(options.driver or "libcuda.so.1").observe()
    except RuntimeError as error:
        return str(error)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the software CUDA driver with a real one.")
    parser.add_argument("--driver", default=os.environ.get(DRIVER), help="path of the real libcuda.so.1")
    parser.add_argument("--against", type=Path, metavar="FILE", help="recorded answers instead of a driver")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the real driver's answers")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    real = real_answers(options)
    if isinstance(real, str):
        print(f"nothing compared: {real}; --against FILE takes recorded answers")
        return 2
    if options.record:
        real.save(options.record)
    with tempfile.TemporaryDirectory() as directory:
        software = observe_software(Path(directory))
    found = list(differences(software, real))
    print(f"software: {software.title()}\nreal:     {real.title()}")
    for difference in found:
        print(difference)
    others = sum(difference.meant is None for difference in found)
    asked = len(software.values.keys() | real.values.keys())
    print(f"{asked} questions, {others} differences, and {len(found) - others} that are meant")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
