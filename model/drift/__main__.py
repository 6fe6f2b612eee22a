"""``python -m model.drift``."""

import sys

from model.drift.cli import main

if __name__ == "__main__":
    sys.exit(main())
