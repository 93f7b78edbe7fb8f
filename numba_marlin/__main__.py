"""``python -m numba_marlin``: the same as the command ``numba-marlin``."""

import sys

from numba_marlin.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
