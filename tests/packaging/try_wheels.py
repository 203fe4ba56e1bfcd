"""`make dist-try`: each wheel is installed in a bare Debian without a compiler, and used there.

    python tests/packaging/try_wheels.py DIRECTORY [--roots DIRECTORY] [--machine MACHINE]

The Debian has its base packages, Python and venv. The dependencies are downloaded beforehand by pip, for that
processor, so the Debian itself needs no network. For the other processor QEMU runs the programs; it is registered with
the kernel for this container only (Linux 6.7 or later), and nothing outside of it changes.

Needs root, debootstrap and the network; for the other processor Debian's package qemu-user-static.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PYTHON = "3.11"
"""Debian 12's."""
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
ENTER = r"""
set -e
if [ -n "$QEMU" ]; then
    mount -t binfmt_misc binfmt /proc/sys/fs/binfmt_misc
    printf ':other:M::%s:%s:%s:F' '{magic}' '{mask}' "$QEMU" > /proc/sys/fs/binfmt_misc/register
fi
mount --rbind /dev "$ROOT/dev"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/tmp"
mkdir "$ROOT/tmp/wheels"
mount --bind "$WHEELS" "$ROOT/tmp/wheels"
exec chroot "$ROOT" /bin/sh -c "$INSIDE"
"""
INSIDE = """
set -ex
export PATH=/usr/bin:/bin HOME=/tmp/home XDG_RUNTIME_DIR=/tmp/run GPUSHARE_SIM=pool=/tmp/pool,memory=4Gi LC_ALL=C.UTF-8
mkdir -p -m 700 /tmp/home /tmp/run
! command -v cc gcc clang
uname -m
python3 -m venv /tmp/home/gpushare
/tmp/home/gpushare/bin/pip install -q --no-index --find-links /tmp/wheels /tmp/wheels/gpushare_cuda-*.whl
cd /tmp/home/gpushare/share/gpushare
PATH=/tmp/home/gpushare/bin:$PATH
gpushare --version
gpushare doctor
gpushare run --driver sim --request 1Gi --limit 2Gi -- python -c '
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
allocate = lambda size: cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
within, beyond = allocate(2**30), allocate(2**31)
print("within the limit:", within, "beyond it:", beyond)
raise SystemExit((within, beyond) != (0, 2))'
gpushare cluster simulate examples/cluster/a1-netapp.yaml
test -e daemon/deploy/gpushared.service -a -e ../man/man1/gpushare.1
gpushare daemon stop || true
echo all done
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="of the wheels")
    parser.add_argument("--roots", type=Path, default=Path("build/roots"), help="where the Debians are made and kept")
    parser.add_argument("--machine", action="append", choices=ARCHITECTURES)
    given = parser.parse_args()
    for machine in given.machine or ARCHITECTURES:
        (wheel,) = given.directory.resolve().glob(f"gpushare_cuda-*_{machine}.whl")
        said = attempt(wheel, machine, given.roots.resolve())
        print(said, end="")
        if not said.endswith("all done\n"):
            sys.exit(f"{wheel.name} does not work on a bare Debian for {machine}")
        print(f"{wheel.name}: works on a bare Debian for {machine}")


def attempt(wheel: Path, machine: str, roots: Path) -> str:
    """What the commands in the bare Debian said; "all done" is the last line if all of them worked."""
    root = bare_debian(roots / ARCHITECTURES[machine], ARCHITECTURES[machine])
    with tempfile.TemporaryDirectory() as directory:
        wheels = Path(directory)
        shutil.copy(wheel, wheels)
        download(wheel, machine, wheels)
        environ = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "ROOT": str(root),
            "WHEELS": str(wheels),
            "INSIDE": INSIDE,
            "QEMU": "" if machine == platform.machine() else emulator(machine),
        }
        script = ENTER.format(magic=MAGIC, mask=MASK)
        inside = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--net"]
        done = subprocess.run(
            [*inside, "sh", "-c", script], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    return done.stdout


def bare_debian(root: Path, architecture: str) -> Path:
    """Debian 12 with Python and venv, unpacked: no script of a package is run, so any architecture will do."""
    if not (root / "complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        line = ["debootstrap", "--foreign", f"--arch={architecture}", "--variant=minbase", "--include=python3-venv"]
        subprocess.run([*line, "bookworm", str(root)], check=True, stdout=subprocess.DEVNULL)
        for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
        (root / "complete").touch()
    return root


def download(wheel: Path, machine: str, wheels: Path) -> None:
    """The dependencies as wheels for that processor and Debian's C library."""
    line = [sys.executable, "-m", "pip", "download", "-q", "-d", str(wheels), "--only-binary=:all:"]
    line += [f"--python-version={PYTHON}", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none"]
    line += [f"--platform=manylinux_2_{minor}_{machine}" for minor in (36, 34, 31, 28, 27, 26, 24, 17, 12, 5)]
    line += [f"--platform=manylinux2014_{machine}"]
    subprocess.run([*line, str(wheel)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def emulator(machine: str) -> str:
    found = shutil.which(f"qemu-{machine}-static")
    if found is None:
        sys.exit(f"qemu-{machine}-static is not installed: apt install qemu-user-static")
    return found


if __name__ == "__main__":
    main()
