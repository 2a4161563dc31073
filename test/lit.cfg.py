"""lit finds the triton-opt of the environment it runs in, and the FileCheck of Triton's wheel."""

import importlib.util
import os
import pathlib
import sys

import lit.formats

config.name = "triton-ext"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = os.path.dirname(__file__)
# Not into the source tree: one folder of results per environment.
config.test_exec_root = os.path.join(sys.prefix, "lit-output")

_spec = importlib.util.find_spec("triton")
if _spec is None or _spec.origin is None:
    lit_config.fatal("no triton is installed beside lit: its wheel holds FileCheck")
_tools = [pathlib.Path(sys.prefix, "bin"), pathlib.Path(_spec.origin).parent]
for _name in ("triton-opt", "FileCheck"):
    if not any((folder / _name).exists() for folder in _tools):
        lit_config.fatal(f"{_name} is in none of {', '.join(map(str, _tools))}")
config.environment["PATH"] = os.pathsep.join([*map(str, _tools), os.environ.get("PATH", "")])
