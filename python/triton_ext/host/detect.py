"""Which Triton is installed.

Guarantee: importing this module imports no Triton; :func:`detect` does, once.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
from dataclasses import dataclass
from functools import lru_cache

from triton_ext.errors import UnsupportedError

__all__ = ["SUPPORTED", "Host", "HostError", "detect"]

# First and last release that the test run covers.  A newer one is used for what its probes confirm.
SUPPORTED = ((3, 6), (3, 9))


class HostError(UnsupportedError):
    """There is no usable Triton: none, too old, or one whose parts disagree."""


@dataclass(frozen=True, slots=True)
class Host:
    """The installed Triton.

    Attributes:
        version: As Triton spells it, such as ``"3.9.0"``.
        release: The first two numbers, such as ``(3, 9)``.
        tested: Whether the test run covers this release.
    """

    version: str
    release: tuple[int, int]
    tested: bool


@lru_cache(maxsize=1)
def detect() -> Host:
    """Returns the installed Triton.

    Raises:
        HostError: Triton is missing, does not load, is older than 3.6, or its package metadata and
            its library disagree (a half-finished upgrade).
    """
    try:
        import triton
    except ModuleNotFoundError as error:
        if error.name == "numpy":
            raise HostError(
                "Triton's interpreter (TRITON_INTERPRET=1) needs numpy: pip install numpy"
            ) from error
        if error.name != "triton":
            raise HostError(f"the installed Triton does not load: {error}") from error
        raise HostError("no Triton is installed: pip install 'triton>=3.8'") from error
    except ImportError as error:
        raise HostError(f"the installed Triton does not load: {error}") from error
    version = triton.__version__
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise HostError(f"cannot read the version of the installed Triton: {version!r}")
    release = (int(match[1]), int(match[2]))
    first, last = SUPPORTED
    if release < first:
        raise HostError(
            f"triton {version} is too old, triton-ext needs {first[0]}.{first[1]} or newer: "
            "pip install 'triton>=3.8'"
        )
    _check_metadata(version, pathlib.Path(str(triton.__file__)).parents[1])
    return Host(version=version, release=release, tested=first <= release <= last)


def _check_metadata(version: str, folder: pathlib.Path) -> None:
    """Refuses a library in ``folder`` about which the package metadata says something else."""
    try:
        recorded = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return  # A Triton on PYTHONPATH has no metadata; there is nothing to disagree with.
    # Local builds append "+git..."; the public part is what has to match.
    if recorded.split("+")[0] != version.split("+")[0]:
        raise HostError(
            f"the package metadata says triton {recorded}, the library says {version}: "
            "a half-finished upgrade; pip install --force-reinstall triton"
        )
    # Of two records beside each other the first one found may happen to be right.
    found = importlib.metadata.distributions(name="triton", path=[str(folder)])
    records = sorted({distribution.version for distribution in found})
    if len(records) > 1:
        raise HostError(
            f"the package metadata says triton {' and '.join(records)}, the library says "
            f"{version}: a half-finished upgrade; remove triton and triton-*.dist-info in "
            f"{folder}, and install triton again"
        )
