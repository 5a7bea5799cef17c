"""`python -m sepkit` is the same as `sepkit`."""

import sys

from sepkit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
