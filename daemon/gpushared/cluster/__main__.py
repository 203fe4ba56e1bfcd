"""`python -m gpushared.cluster`: what `gpushare cluster serve` becomes."""

from __future__ import annotations

import sys

from gpushared.cluster.command import main

if __name__ == "__main__":
    sys.exit(main())
