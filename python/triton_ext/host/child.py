"""The start of a child process: ``python child.py PARENT (FILE | -m MODULE | -c CODE) [ARG ...]``.

The process ends with its parent, whatever ends that one.  It imports nothing from the current
folder.  ``triton_ext.host.children`` makes the command.

This file runs by its path, before anything of the package can be imported.
"""

from __future__ import annotations

import os
import sys

# Python puts the folder of the script, without links, in front; its modules would hide others.
if sys.path[:1] == [os.path.dirname(os.path.realpath(__file__))]:
    del sys.path[0]

import ctypes
import importlib
import signal

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends (prctl(2), PR_SET_PDEATHSIG).

    Args:
        parent: The process that started this one; if it has ended already, this process ends.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _import_package() -> None:
    """Imports the package of the parent; others may be found before it, or only the parent's."""
    root = os.path.abspath(f"{__file__}/../../..")
    sys.path.insert(0, root)
    importlib.import_module("triton_ext")
    del sys.path[0]
    # The parent may have found the package in its own current folder.
    sys.path.append(root)


def main() -> None:
    """Runs what the command line names."""
    _, parent, kind, *arguments = sys.argv
    end_with(int(parent))
    if not sys.flags.isolated:
        _import_package()
    if kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(arguments[0], {"__name__": "__main__"})
        return
    import runpy

    if kind == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *arguments]
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    main()
