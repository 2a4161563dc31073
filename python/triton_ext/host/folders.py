"""The folders of the user that files are kept in, by the XDG Base Directory Specification."""

from __future__ import annotations

import os
import pathlib
import pwd

__all__ = ["base_folder", "in_home"]


def base_folder(variable: str, default: str) -> pathlib.Path | None:
    """Returns a folder of the user; ``None`` where there is no home folder.

    Args:
        variable: The environment variable that names it, such as ``XDG_CACHE_HOME``.  A relative
            path in it does not count, as the specification asks.
        default: Its path in the home folder.
    """
    folder = os.environ.get(variable, "")
    return pathlib.Path(folder) if os.path.isabs(folder) else in_home(default)


def in_home(path: str) -> pathlib.Path | None:
    """Returns a path in the user's home folder; ``None`` where there is none.

    An empty ``HOME`` counts as one that is not set.
    """
    home = os.environ.get("HOME", "")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return pathlib.Path(home, path) if os.path.isabs(home) else None
