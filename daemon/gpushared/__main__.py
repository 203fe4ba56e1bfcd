"""python -m gpushared, and the gpushared command."""

from __future__ import annotations

import sys

from gpushared.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
