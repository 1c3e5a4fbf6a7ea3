"""`python -m soctk_evaluation.cli`: the `soctk` command line."""

import sys

from soctk_evaluation.cli import main

if __name__ == "__main__":
    sys.exit(main())
