"""The instructions of daemon/deploy/README.md, step by step, on a Debian of its own with systemd as its first process.

Needs root, systemd-nspawn, the network, and a tree of Debian 12 that GPUSHARE_TEST_DEBIAN names (it is not changed):

    debootstrap --variant=minbase --include=ca-certificates,dbus,gcc,libc6-dev,python3-dev,python3-venv,systemd \
        bookworm TREE
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREE = os.environ.get("GPUSHARE_TEST_DEBIAN", "")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
GPUS = "GPUSHARE_SIM=gpus=2,memory=4Gi,pool=/var/lib/gpushare-pool/pool"
DROP_IN = f"""\
[Service]
ExecStart=
ExecStart=/opt/gpushare/bin/gpushared --system --driver sim
Environment={GPUS}
StateDirectory=gpushare-pool
"""
CHECKS = """\
systemctl show gpushared -p MainPID -p User -p StatusText -p NRestarts
pid=$(systemctl show gpushared -p MainPID --value)
grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/$pid/status
useradd alice
runuser -u alice -- gpushare run --name steady --limit 1Gi sleep 300 &
until gpushare ps | grep steady; do sleep 0.2; done
job=$(gpushare ps -o json | grep -o '"id": "[0-9a-f]*"')

printf '[policy]\\nmax_limit = "512Mi"\\n' > /etc/gpushare/gpushared.toml
systemctl reload gpushared
until runuser -u alice -- gpushare run --limit 1Gi true; test $? = 125; do sleep 0.2; done
echo broken > /etc/gpushare/gpushared.toml
systemctl reload gpushared
sleep 1
systemctl is-active gpushared
echo > /etc/gpushare/gpushared.toml

kill -9 $pid
until test "$(systemctl show gpushared -p MainPID --value)" != $pid && gpushare ps; do sleep 0.2; done
systemctl restart gpushared
gpushare ps -o json | grep "$job" && echo "the same job"
gpushare set steady --limit 2Gi

printf '[dashboard]\\nport = 9837\\n' > /etc/gpushare/gpushared.toml
systemctl restart gpushared
until url=$(gpushare dashboard --admin); do sleep 0.2; done
python3 -c "import urllib.request; print('the page', urllib.request.urlopen('http://127.0.0.1:9837/').status)"
pid=$(systemctl show gpushared -p MainPID --value)
page=$(cat /proc/$pid/task/$pid/children)
echo "of the page: $(grep -E '^Cap(Prm|Eff|Amb):' /proc/$((page))/status | tr -s '\\t\\n' ' ')"
systemctl stop gpushared
test ! -e /proc/$((page)) && echo "the page has ended"
journalctl -b -u gpushared --no-pager
echo "all done"
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not TREE, reason="GPUSHARE_TEST_DEBIAN does not name a tree of Debian"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("systemd-nspawn") is None, reason="no systemd-nspawn here"),
]


def steps() -> list[str]:
    return re.findall(r"```console\n(.*?)```", (ROOT / "daemon" / "deploy" / "README.md").read_text(), re.DOTALL)


@pytest.fixture
def debian(tmp_path: Path) -> Iterator[Path]:
    """A copy that costs nothing: what is written goes beside the tree."""
    for name in ("root", "written", "work"):
        (tmp_path / name).mkdir()
    layers = f"lowerdir={TREE},upperdir={tmp_path / 'written'},workdir={tmp_path / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(tmp_path / "root")], check=True)
    try:
        yield tmp_path / "root"
    finally:
        subprocess.run(["umount", str(tmp_path / "root")], check=True)


def container(debian: Path, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    name = f"gpushare-test-{os.getpid()}"
    line = ["systemd-nspawn", "-q", "-D", str(debian), "-M", name, "--register=no", "--keep-unit"]
    if CERTIFICATES.exists():  # whom this machine trusts, a proxy of its own perhaps
        line.append(f"--bind-ro={CERTIFICATES}")
    line += arguments
    return subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)


def test_the_instructions_work_on_a_fresh_debian(debian: Path) -> None:
    install, start = steps()
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    pack = ["tar", "--null", "-cf", "-", "-T", "-"]
    archive = subprocess.run(pack, cwd=ROOT, input=files, capture_output=True, check=True).stdout
    (debian / "src").mkdir()
    subprocess.run(["tar", "-xf", "-"], cwd=debian / "src", input=archive, check=True)

    (debian / "install.sh").write_text(f"set -ex\ncd /src\n{install}")
    done = container(debian, "sh", "/install.sh", seconds=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'last_rung = "kill"  # /etc/gpushare/gpushared.toml' in done.stdout

    drop_in = debian / "etc/systemd/system/gpushared.service.d/sim.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(DROP_IN)
    (debian / "check.sh").write_text(f"exec > /result 2>&1\nset -x\nexport {GPUS}\n{start}\n{CHECKS}")
    check = debian / "etc/systemd/system/check.service"
    check.write_text("[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\nExecStart=/bin/sh /check.sh\n")
    check.write_text(check.read_text() + "ExecStopPost=/bin/systemctl poweroff --force\nTimeoutStartSec=120\n")
    wants = debian / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "check.service").symlink_to("../check.service")
    container(debian, "-b", seconds=300)
    said = (debian / "result").read_text()

    assert "\nall done\n" in said, said
    for line in ("User=gpushare", "StatusText=2 GPUs, 0 jobs, 0 B lent", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in said, said
    assert "CapEff:\t0000000000000020" in said and "CapBnd:\t0000000000000020" in said, "CAP_KILL alone"
    assert "limit: 1.0 GiB; at most 512.0 MiB" in re.sub(r"limit +1", "limit: 1", said), said
    assert "/etc/gpushare/gpushared.toml:1 is not TOML" in said
    assert "the page 200" in said and "the page has ended" in said
    assert "of the page: " + " ".join(f"Cap{kind}: {0:016x}" for kind in ("Prm", "Eff", "Amb")) in said, said
    assert "the same job" in said and "→ 2.0 GiB" in said
    assert "Reload failed" not in said and "Traceback" not in said
