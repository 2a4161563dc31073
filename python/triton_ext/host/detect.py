"""Which Triton is installed.

Guarantee: importing this module imports no Triton; :func:`detect` does, once.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NoReturn

from triton_ext.errors import DriverError, UnsupportedError
from triton_ext.host.chain import PROBE

__all__ = ["SUPPORTED", "Host", "HostError", "changed_files", "detect", "wrap_create_driver"]

# First and last release that the test run covers.  A newer one is used for what its probes confirm.
SUPPORTED = ((3, 6), (3, 9))


# A name that the library has since each release: its module or class, and the name.
_IN_LIBRARY_SINCE: Final = {
    (3, 7): ("gluon_ir.GluonOpBuilder", "create_async_tdm_gather"),
    (3, 8): ("gluon_ir.GluonOpBuilder", "get_tensor_descriptor_im2col_layout_type"),
    (3, 9): ("gluon_ir.GluonOpBuilder", "create_async_tdm_fused_copy_global_to_local"),
}


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
    except ImportError as error:
        _explain(error)
    except AttributeError as error:  # a name that the library of another release has not
        raise HostError(f"the installed Triton does not load: {error}{_half()}") from error
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
    _check_library(version, release)
    return Host(version=version, release=release, tested=first <= release <= last)


def _explain(error: ImportError) -> NoReturn:
    """Raises an error that says why Triton cannot be imported.

    Raises:
        HostError: Always.
    """
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if name == "numpy":
        raise HostError(
            "Triton's interpreter (TRITON_INTERPRET=1) needs numpy: pip install numpy"
        ) from error
    if name == "triton":
        raise HostError("no Triton is installed: pip install 'triton>=3.8'") from error
    half = "" if "cannot open shared object file" in str(error) else _half()
    raise HostError(f"the installed Triton does not load: {error}{half}") from error


def _half() -> str:
    """Returns the advice for a Triton whose files do not fit together."""
    try:
        wanted = f"'triton=={importlib.metadata.version('triton')}'"
    except importlib.metadata.PackageNotFoundError:
        wanted = "triton"
    return (
        ": its Python files and its library may be of two releases, a half-finished upgrade; "
        f"pip install --force-reinstall --no-deps {wanted}"
    )


def _check_library(version: str, release: tuple[int, int]) -> None:
    """Refuses a libtriton of another release than the Python files around it.

    The library does not report its version, so the names in its bindings decide.  A build between
    two releases, whose version has a local part, may already have names of the next one.
    """
    last = SUPPORTED[1]
    if "+" in version or release > last:
        return
    from triton._C import libtriton

    has = {since for since, name in _IN_LIBRARY_SINCE.items() if _has(libtriton, *name)}
    if has != {since for since in _IN_LIBRARY_SINCE if since <= release}:
        found = max(has, default=SUPPORTED[0])
        wanted = ".".join(map(str, found))
        newer = " or newer" if found == last else ""
        raise HostError(
            f"the Python files of the installed triton say {version}, its library "
            f"{libtriton.__file__} is of {wanted}{newer}: a half-finished upgrade; "
            f"pip install --force-reinstall --no-deps 'triton=={version}'"
        )


def _has(library: Any, path: str, name: str) -> bool:
    for part in path.split("."):
        library = getattr(library, part, None)
    return hasattr(library, name)


def _check_metadata(version: str, folder: pathlib.Path) -> None:
    """Refuses a library in ``folder`` whose package metadata names another version."""
    try:
        recorded = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        # A Triton on PYTHONPATH has no metadata; there is nothing to disagree with.  One that was
        # installed has, unless pip was interrupted.
        if folder in {pathlib.Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
            raise HostError(
                f"triton {version} lies in {folder} without package metadata "
                "(triton-*.dist-info): a half-finished upgrade; "
                f"pip install --force-reinstall --no-deps 'triton=={version}'"
            ) from None
        return
    # Local builds append "+git..."; the public part is what has to match.
    if recorded.split("+")[0] != version.split("+")[0]:
        raise HostError(
            f"the package metadata says triton {recorded}, the library says {version}: "
            "a half-finished upgrade, or a triton on PYTHONPATH in front of the installed one; "
            f"pip install --force-reinstall --no-deps 'triton=={recorded}'"
        )
    # With two records beside each other, the first one found may happen to be right.
    found = importlib.metadata.distributions(name="triton", path=[str(folder)])
    records = sorted({distribution.version for distribution in found})
    if len(records) > 1:
        raise HostError(
            f"the package metadata says triton {' and '.join(records)}, the library says "
            f"{version}: a half-finished upgrade; remove triton and triton-*.dist-info in "
            f"{folder}, and install triton again"
        )


def changed_files() -> tuple[str, ...]:
    """Names the files of the installed Triton whose sizes are not those that pip recorded.

    Returns nothing if pip recorded no sizes.  A changed file is no reason to refuse Triton: conda
    and distributions change the library's run path after pip, and people patch files.
    """
    import triton

    folder = pathlib.Path(str(triton.__file__)).parents[1]
    changed = []
    for distribution in importlib.metadata.distributions(name="triton", path=[str(folder)]):
        for file in distribution.files or ():
            if file.parts[0] != "triton" or file.size is None:
                continue
            path = folder / file
            if not path.is_file() or path.stat().st_size != file.size:
                changed.append(str(file))
    return tuple(changed)


def wrap_create_driver(
    previous: Callable[..., Any], is_active: Callable[[], bool]
) -> Callable[..., Any]:
    """Wraps the choice of the GPU driver so that a launch without a GPU says what to do.

    Args:
        previous: ``triton.runtime.driver._create_driver``.
        is_active: Tells whether the plugin is installed; without it nothing is changed.
    """

    def create_driver(*args: Any) -> Any:
        if args and args[0] is PROBE:
            return PROBE
        try:
            return previous(*args)
        except RuntimeError as error:
            if not is_active() or not str(error).startswith("0 active drivers"):
                raise
            raise DriverError(
                f"Triton finds no GPU to launch a kernel on ({error}); run it on a machine with a "
                "GPU and its driver, or on the CPU: for @triton.jit kernels set "
                "TRITON_INTERPRET=1 before the program starts, and for Gluon kernels, or the "
                "compiled form of either, launch triton_ext.emulated(kernel, target)[grid](...)"
            ) from error

    return create_driver
