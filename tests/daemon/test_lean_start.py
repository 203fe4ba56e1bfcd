"""A daemon that starts imports nothing for TLS; what needs it later gets it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from gpushared import cli
assert "ssl" not in sys.modules
with cli._only_what_is_needed():
    try:
        import ssl
    except ImportError:
        print("none inside")
    try:
        import http.client, urllib.request
    except ImportError:
        pass
import ssl
import http.client, urllib.request
print(bool(ssl.create_default_context()))
print(hasattr(http.client, "HTTPSConnection"), hasattr(urllib.request, "HTTPSHandler"))
with cli._only_what_is_needed():
    import ssl as again
print(again is ssl, sys.modules["ssl"] is ssl)
"""


def test_modules_for_tls_are_there_after_the_start_and_not_during_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["none inside", "True", "True True", "True True"]
