"""``python -m triton_ext`` is the console script ``triton-ext``."""

import sys

from triton_ext.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
