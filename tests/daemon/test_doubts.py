"""What `gpushared --check-config` warns of: allowed, and probably not meant."""

from __future__ import annotations

import subprocess
import sys

import pytest
from daemon_harness import PYTHONPATH

from gpushared import config
from gpushared.config_check import doubts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", []),
        ('[daemon]\nadmin_group = "root"', []),
        ('[daemon]\nadmin_group = "no-such"', ["$.daemon.admin_group: there is no group 'no-such' on this machine"]),
        ('[placements]\ngroup = "root"', []),
        (
            '[placements]\ngroup = "no-such"',
            ["$.placements.group: there is no group 'no-such' on this machine: only root places jobs"],
        ),
        ("[policy.users.root]\nmax_jobs = 1\n[policy.users.61001]\nmax_jobs = 1", []),
        ("[policy.users.no-such]\nmax_jobs = 1", ["$.policy.users.no-such: there is no user 'no-such'"]),
        ("[policy.groups.root]\nmax_jobs = 1\n[policy.groups.61001]\nmax_jobs = 1", []),
        ("[policy.groups.no-such]\nmax_jobs = 1", ["$.policy.groups.no-such: there is no group 'no-such'"]),
        (
            '[policy.projects.p]\nmembers = ["root", "nobody-here", "@root", "@none-here"]',
            [
                "$.policy.projects.p: there is no user 'nobody-here'",
                "$.policy.projects.p: there is no group 'none-here'",
            ],
        ),
        ('[reclaim]\ngrace = "28s"', []),
        (
            '[reclaim]\ngrace = "29s"',
            ["$.reclaim.grace is 29 s, and no borrower gets more than 28 s:"],
        ),
        ('[reclaim]\ngrace = "1m"\nclaim_timeout = "2m"', []),
        ('[policy]\nmax_grace = "28s"', []),
        ('[policy]\nmax_grace = "1h"', ["$.policy.max_grace is 1h, and no borrower gets more than 28 s"]),
        ('[policy]\nlimit = "4Gi"\nmax_limit = "4Gi"', []),
        ('[policy]\nlimit = "max"\nmax_limit = "4Gi"', []),
        ('[policy]\nlimit = 0.5\nmax_limit = "4Gi"', []),
        ('[policy]\nlimit = "8Gi"\nmax_limit = "4Gi"', ["$.policy: limit 8Gi is above max_limit 4Gi"]),
        (
            '[policy]\nrequest = 0.5\nmax_request = 0.25\nlimit = "max"',
            ["$.policy: request 0.5 is above"],
        ),
        (
            '[policy]\nmax_request = "3Gi"\n[policy.users.root]\nlimit = "6Gi"',
            ["$.policy.users.root: request 6Gi is above max_request 3Gi: a job that asks for nothing is refused"],
        ),
        ('[policy]\nmax_request = "3Gi"\n[policy.users.root]\nlimit = "6Gi"\nrequest = "none"', []),
        ('[policy]\nmax_request = "3Gi"\n[policy.users.root]\nlimit = "6Gi"\nmax_request = "unlimited"', []),
        ('[policy]\nmax_request = "8Gi"\nmax_limit = "4Gi"', ["$.policy: max_request 8Gi is above max_limit 4Gi"]),
        ('[metrics]\nlisten = "127.0.0.1:9400"', []),
        ('[metrics]\nlisten = "127.9.9.9:9400"', []),
        ('[metrics]\nlisten = "[::1]:9400"', []),
        ('[metrics]\nlisten = "localhost:9400"', []),
        ('[metrics]\nlisten = "0.0.0.0:9400"', ["$.metrics.listen: 0.0.0.0:9400 is open to other machines"]),
        ('[metrics]\nlisten = "[::]:9400"', ["$.metrics.listen: [::]:9400 is open to other machines"]),
        ('[metrics]\nlisten = "node7:9400"', ["$.metrics.listen: node7:9400 is open to other machines"]),
    ],
)
def test_what_is_doubted(text, says):
    found = doubts(config.Config(**config.parse(text, "g.toml")))
    assert len(found) == len(says), found
    assert all(one.startswith(begin) for one, begin in zip(found, says, strict=True)), found


def test_check_config_says_it_and_succeeds(tmp_path):
    file = tmp_path / "g.toml"
    file.write_text('[metrics]\nlisten = "0.0.0.0:9400"\n')
    line = [sys.executable, "-m", "gpushared", "--check-config", "--config", str(file)]
    done = subprocess.run(line, env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr.startswith("gpushared: $.metrics.listen: 0.0.0.0:9400 is open to other machines")
    assert 'listen = "0.0.0.0:9400"' in done.stdout
