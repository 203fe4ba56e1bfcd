"""How fast jobs start on a Slurm of 32 nodes with 8 GPUs each: by the allocator, and by Slurm's own backfill.

python benchmarks/slurm.py [--jobs 2000] [--nodes 32] [--seconds 5]

Both get one array of equal jobs of one GPU, on the same cluster, one after the other. Slurm's backfill counts the GPUs
of each node, as on sites that share none. All daemons and jobs run on this machine, so the times are those of a small
one that does all of it. A start takes the allocator one command of Slurm, and up to 32 together one more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "engines"), str(ROOT), str(ROOT / "daemon")]
os.environ["GPUSHARE_TEST_ENGINES"] = "1"

from call_times import around  # noqa: E402
from slurm_stage import Cluster, Stage, missing, open_folder, with_plugins  # noqa: E402

PARTITIONS = (
    "PartitionName=gpushare Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    "PartitionName=plain Nodes=ALL MaxTime=INFINITE State=UP",
)


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--jobs", type=int, default=2000)
    made.add_argument("--nodes", type=int, default=32)
    made.add_argument("--seconds", type=float, default=5.0, help="that each job takes")
    options = made.parse_args()
    if missing():
        sys.exit(f"not here: {missing()}")
    with open_folder() as root:
        cluster = with_plugins(
            root, nodes=options.nodes, gpus=8, memory=80 * 1024, partitions=PARTITIONS, more=["MaxArraySize=10001"]
        )
        try:
            cluster.up()
            print(f"{'':12}{'started':>9}{'first':>9}{'all':>9}{'a second':>10}{'mean wait':>11}", flush=True)
            backfill(cluster, options)
            by_allocator(cluster, options, root)
        finally:
            cluster.down()


def backfill(cluster: Cluster, options: argparse.Namespace) -> None:
    show("backfill", cluster, array(cluster, options, "-p", "plain", "--gres=gpu:1"), lambda: None)


def by_allocator(cluster: Cluster, options: argparse.Namespace, root: Path) -> None:
    stage = Stage(cluster, root / "service")
    stage.round()
    spent = timed(stage)
    began, used = time.monotonic(), time.process_time()
    show("allocator", cluster, array(cluster, options, "--gpushare=default"), stage.round)
    whole = time.monotonic() - began
    print(
        f"the allocator took {spent['append']:.1f} s of {whole:.1f} s for its decisions and their file,"
        f" {spent['commands']:.1f} s Slurm's commands; the service used {time.process_time() - used:.1f} s of a core"
    )
    stage.store.close()


def timed(stage: Stage) -> dict[str, float]:
    spent = {"append": 0.0, "commands": 0.0}
    around(spent, stage.store, "append", "append")
    around(spent, stage.store, "pass_time", "append")
    around(spent, stage.engine._commands, "run", "commands")
    return spent


def array(cluster: Cluster, options: argparse.Namespace, *more: str) -> str:
    return cluster.sbatch(f"sleep {options.seconds}", f"--array=0-{options.jobs - 1}", "-o", "/dev/null", *more)


def show(name: str, cluster: Cluster, id: str, each: Callable[[], None]) -> None:
    began = time.time()
    while time.time() < began + 900:
        each()
        left = cluster.run("squeue", "-h", "-r", "-j", id, "-t", "PENDING,CONFIGURING", "-o", "%i").stdout.split()
        if not left:
            break
        time.sleep(0.2)
    listed = json.loads(cluster.run("squeue", "--json", timeout=120).stdout)["jobs"]
    jobs = [one for one in listed if str(one["array_job_id"]) == id and one["array_task_id"] is not None]
    starts = sorted(one["start_time"] for one in jobs if one["start_time"])
    waits = [one["start_time"] - one["submit_time"] for one in jobs if one["start_time"]]
    span = max(1, starts[-1] - starts[0])
    print(
        f"{name:12}{len(starts):>9}{starts[0] - int(began):>7} s{starts[-1] - int(began):>7} s"
        f"{len(starts) / span:>10.1f}{statistics.mean(waits):>9.1f} s",
        flush=True,
    )
    cluster.run("scancel", id)
    while cluster.run("squeue", "-h", "-j", id, "-o", "%i").stdout.split():
        time.sleep(0.5)


if __name__ == "__main__":
    main()
