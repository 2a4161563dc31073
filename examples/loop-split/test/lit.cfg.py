"""lit finds triton-opt beside itself and FileCheck in Triton's wheel."""
# ruff: noqa: F821 - lit defines config

import importlib.util
import os
import pathlib
import sys
import tempfile

import lit.formats

config.name = "loop-split"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(tempfile.gettempdir(), "loop-split")
triton = pathlib.Path(importlib.util.find_spec("triton").origin).parent
path = [str(pathlib.Path(sys.prefix, "bin")), str(triton), os.environ.get("PATH", "")]
config.environment["PATH"] = os.pathsep.join(path)
config.environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
