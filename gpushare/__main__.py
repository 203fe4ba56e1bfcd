"""python -m gpushare"""

import sys

from gpushare_installation import main

if __name__ == "__main__":
    sys.exit(main())
