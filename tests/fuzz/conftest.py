"""Makes the tools of the other test directories importable here."""

import sys
from pathlib import Path

for directory in ("portability", "daemon"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / directory))
