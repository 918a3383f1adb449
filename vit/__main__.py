"""`python -m vit`: see `vit.cli.main`."""

import sys

from vit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
