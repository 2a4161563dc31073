"""lit finds the triton-opt of the environment it runs in, and the FileCheck of Triton's wheel.

Features: ``triton`` where Triton is installed, ``triton-3.8`` for its release, and
``triton-3.8-or-newer`` for that and every older one since 3.6.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import sys

import lit.formats

config.name = "triton-ext"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".ll"]
config.test_source_root = os.path.dirname(__file__)
# Not into the source tree: one folder of results per environment.
config.test_exec_root = os.path.join(sys.prefix, "lit-output")

config.excludes = ["Inputs"]
config.substitutions.append(("%{python}", sys.executable))

# The environment's own folder first: another triton-opt on PATH is not what is tested.
_folders = [pathlib.Path(sys.prefix, "bin")]
_spec = importlib.util.find_spec("triton")
if _spec is not None and _spec.origin is not None:
    _folders.append(pathlib.Path(_spec.origin).parent)
    config.available_features.add("triton")
    _release = tuple(map(int, importlib.metadata.version("triton").split(".")[:2]))
    config.available_features.add("triton-{}.{}".format(*_release))
    for _minor in range(6, _release[1] + 1):
        config.available_features.add(f"triton-3.{_minor}-or-newer")
    # The option's name in Triton's own passes for AMD; ours know both.
    _gfx_arch = "gfx-arch" if _release >= (3, 8) else "arch-generation-name"
    config.substitutions.append(("%{gfx-arch}", _gfx_arch))
    # Whose allocation does not know physical partitions of LDS from its start.
    config.substitutions.append(("%{blind}", "BLIND" if _release < (3, 9) else "PLACED"))
_path = os.pathsep.join([*map(str, _folders), os.environ.get("PATH", "")])
for _name in ("triton-opt", "FileCheck"):
    if shutil.which(_name, path=_path) is None:
        lit_config.fatal(f"{_name} is in none of {', '.join(map(str, _folders))}, nor on PATH")
if shutil.which("split-file", path=_path) is None:
    # A checkout that was installed before the script was there.
    _split_file = f"{sys.executable} -m triton_ext.tools.split_file"
    config.substitutions.append((r"(?<![\w./-])split-file(?![\w./-])", _split_file))
config.environment["PATH"] = _path
# Where triton-opt keeps what it learned about Triton's passes, and where an uninstalled package is.
for _name in ("HOME", "XDG_CACHE_HOME", "PYTHONPATH"):
    if _name in os.environ:
        config.environment[_name] = os.environ[_name]
