"""What the conformance stand does to a cluster, it does to that cluster alone: others run on the same machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

from slurm_conformance import processes


def test_only_processes_of_this_clusters_node_are_killed() -> None:
    mine, other = Path("/nowhere/mine/slurm.conf"), Path("/nowhere/other/slurm.conf")
    places = [(mine, "n0"), (mine, "n1"), (other, "n0")]
    programs = [
        subprocess.Popen(["sleep", "60"], env={"SLURM_CONF": str(conf), "SLURMD_NODENAME": node}, cwd="/")
        for conf, node in places
    ]
    try:
        assert list(processes(mine, "n0", [])) == [programs[0].pid]
    finally:
        for program in programs:
            program.kill()
            program.wait()
