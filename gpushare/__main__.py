"""python -m gpushare"""

import sys

from gpushare.cli import main

if __name__ == "__main__":
    sys.exit(main())
