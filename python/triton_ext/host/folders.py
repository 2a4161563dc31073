"""The folders of the user that files are kept in, by the XDG Base Directory Specification."""

from __future__ import annotations

import os
import pathlib
import pwd

__all__ = ["base_folder"]


def base_folder(variable: str, default: str) -> pathlib.Path | None:
    """Returns a folder of the user; ``None`` where there is no home folder.

    Args:
        variable: The environment variable that names it, such as ``XDG_CACHE_HOME``.  A relative
            path in it does not count, as the specification asks.
        default: Its path in the home folder.
    """
    for folder in (os.environ.get(variable, ""), _home(default)):
        if os.path.isabs(folder):
            return pathlib.Path(folder)
    return None


def _home(default: str) -> str:
    home = os.environ.get("HOME", "")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return ""
    return os.path.join(home, default)
