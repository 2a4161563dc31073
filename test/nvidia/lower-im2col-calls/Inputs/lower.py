"""Prints a module of LLVM IR with its markers lowered, or the error."""

import pathlib
import sys

from triton_ext import backends
from triton_ext.errors import SourceError

path = pathlib.Path(sys.argv[1])
try:
    sys.stdout.write(backends.load("nvidia", "lower-im2col-calls")(path.read_text(), path.name))
except SourceError as error:
    sys.exit(str(error))
