"""`python -m vit`: see `vit.cli.main`."""

import sys

from vit.cli.main import main
from vit.cli.watched import watched

if __name__ == "__main__":
    sys.exit(watched(main))
