"""What must never cost a run: hosts with a standard error of a certain kind, several copies of us, threads that end
contexts under each other, tools that call us from inside the driver.
"""

from __future__ import annotations

import os
import subprocess

import pytest

LIMIT = {"GPUSHARE_LIMIT": "4Gi"}

@pytest.mark.parametrize("reader", ["gone", "stalled"])
def test_a_standard_error_that_nobody_reads(host, reader):
    """The pipe is broken, or full: the message is lost, and the program goes on."""
    read, write = os.pipe()
    if reader == "gone":
        os.close(read)
    else:
        os.set_blocking(write, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(write, bytes(4096))
        os.set_blocking(write, True)
    script = """
        import signal
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)                     # as in any program but Python
        cuda = Cuda().start()
        say([cuda.alloc(2**60)[0], cuda.alloc(GiB)[0], signal.sigpending() == set()])
    """
    done = subprocess.run(
        host.script(script), env=host.environment(**LIMIT), stdout=subprocess.PIPE, stderr=write, text=True, timeout=20
    )
    assert (done.returncode, done.stdout) == (0, "[2, 0, true]\n")
