"""Makes the virtual environments of the tests and the demo, and installs the package into them.

Guarantees: nothing outside of the folder that is asked for is written; an environment is made again
only when what it was made from changed; the package is built from this tree as ``pip install .``
builds it, without left-overs of an earlier build, and again whenever one of its sources changed.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = [
    "COMPANIONS",
    "ROOT",
    "TORCH",
    "Environment",
    "EnvironmentProblem",
    "environment_for",
    "say",
    "timed",
]

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The release of torch that everything here is tested with.  torch pins a Triton of its own, so the
# Triton that is wanted is installed after it.
TORCH = "2.13.0"

# Packages that a release of Triton needs but does not require.
COMPANIONS = {
    # Its interpreter turns one-element arrays into numbers, which numpy 2.4 refuses.
    "3.6.0": ("numpy<2.4",),
}

# Sources of a wheel; one changed byte means a new installation.
_SOURCES = ("python", "third_party", "pyproject.toml", "setup.py", "README.md", "LICENSE")
_SUFFIXES = (".py", ".pyi", ".c", ".h", ".toml", ".md", ".typed", "")


class EnvironmentProblem(Exception):
    """The environment cannot be made; the text is a sentence for the user."""


def say(text: str) -> None:
    """Writes a line at once, so that it stands before what a child process prints."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def timed(what: str, action: Callable[[], None]) -> None:
    """Runs ``action`` between two lines that tell what runs and how long it took."""
    say(f"== {what}")
    start = time.monotonic()
    action()
    say(f"== {what}: {time.monotonic() - start:.1f} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment with one Triton and the package.

    Attributes:
        folder: Where it lies.
        triton: Release of Triton, such as ``"3.9.0"``.
        extras: Extras of the package to install, such as ``("test",)``.
        beside: Other packages to install, such as ``("triton-utlx~=3.8.0",)``.
    """

    folder: pathlib.Path
    triton: str
    extras: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def python(self) -> pathlib.Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    def prepare(self) -> None:
        """Brings the environment up to date, doing only what is needed.

        Raises:
            EnvironmentProblem: A step failed.
        """
        wanted = self._digest_of_environment()
        stamp = self.folder / "environment.stamp"
        if _read(stamp) != wanted:
            self._check_python()
            timed(f"make {_relative(self.folder)}", self._create)
            timed(f"install torch {TORCH}", lambda: self._pip(f"torch=={TORCH}"))
            wheels = (f"triton=={self.triton}", *COMPANIONS.get(self.triton, ()), *self.beside)
            timed(f"install {' '.join(wheels)}", lambda: self._pip(*wheels))
            stamp.write_text(wanted)
        sources = digest(_source_files())
        stamp = self.folder / "package.stamp"
        if _read(stamp) != sources:
            timed("build and install triton-ext", self._install_package)
            stamp.write_text(sources)

    def run(self, *command: str, **variables: str) -> int:
        """Runs a command of the environment in the root of the tree; returns its exit status."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, "PATH": path, **variables}
        # Neither of them may lead around what is installed here.
        for name in ("PYTHONPATH", "PYTHONHOME"):
            environment.pop(name, None)
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode

    def _digest_of_environment(self) -> str:
        parts = [sys.version, self.triton, TORCH, ",".join(self.extras), ",".join(self.beside)]
        return digest([ROOT / "pyproject.toml", pathlib.Path(__file__)], *parts)

    def _check_python(self) -> None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        if sys.version_info < (3, 10):  # noqa: UP036 - this runs before pip could check it
            raise EnvironmentProblem(
                f"Python 3.10 or newer is needed, {sys.executable} is {version}; "
                "say make PYTHON=/path/to/python3"
            )
        if sys.platform != "linux":
            raise EnvironmentProblem(f"Triton's wheels are for Linux, this is {sys.platform}")

    def _create(self) -> None:
        self._checked(
            [sys.executable, "-m", "venv", "--clear", str(self.folder)],
            "python's venv module is missing (on Debian and Ubuntu: apt install python3-venv)",
        )

    def _install_package(self) -> None:
        requirement = f".[{','.join(self.extras)}]" if self.extras else "."
        with tempfile.TemporaryDirectory(prefix="triton-ext-build-") as folder:
            # An old build/ in the tree would carry deleted modules into the wheel.
            config = pathlib.Path(folder, "setup.cfg")
            config.write_text(f"[build]\nbuild_base = {folder}\n[egg_info]\negg_base = {folder}\n")
            # Here a compiler's warning is an error; a user's newer compiler may warn.
            flags = f"{os.environ.get('CFLAGS', '')} -Werror".strip()
            self._pip(requirement, DIST_EXTRA_CONFIG=str(config), CFLAGS=flags)

    def _pip(self, *requirements: str, **variables: str) -> None:
        command = [str(self.python), "-m", "pip", "install", "-qq", "--no-input", *requirements]
        self._checked(
            command,
            f"pip cannot install {' '.join(requirements)}; its own words stand above",
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            **variables,
        )

    def _checked(self, command: list[str], advice: str, **variables: str) -> None:
        environment = {**os.environ, **variables}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
        )
        # Shown only now: pip calls it an error that torch asks for another Triton, and goes on.
        if done.returncode != 0:
            say(f"{done.stdout}{done.stderr}".rstrip())
            raise EnvironmentProblem(advice)


def environment_for(triton: str, *beside: str) -> Environment:
    """Returns the environment of the tests with a Triton, and with other packages beside it."""
    folder = "-".join(["test", triton, *(name.partition("~")[0] for name in beside)])
    return Environment(
        folder=ROOT / ".venv" / folder,
        triton=triton,
        extras=("test", "interpreter", "docs"),
        beside=beside,
    )


def digest(paths: list[pathlib.Path], *more: str) -> str:
    """Returns a digest of the contents and names of files, and of ``more``."""
    state = hashlib.sha256("\0".join(more).encode())
    for path in paths:
        state.update(f"\0{path.relative_to(ROOT)}\0".encode())
        state.update(path.read_bytes())
    return state.hexdigest()


def _source_files() -> list[pathlib.Path]:
    return sorted(path for name in _SOURCES for path in _files(ROOT / name))


def _files(path: pathlib.Path) -> Iterator[pathlib.Path]:
    if path.is_file():
        yield path
    elif path.is_dir() and path.name != "__pycache__" and path.suffix != ".egg-info":
        for child in path.iterdir():
            if child.is_dir() or child.suffix in _SUFFIXES:
                yield from _files(child)


def _read(path: pathlib.Path) -> str | None:
    return path.read_text() if path.is_file() else None


def _relative(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
