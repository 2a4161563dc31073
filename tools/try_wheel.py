"""Tries the wheel as a user gets it: ``make try-wheel``, ``make try-wheel ARCH=aarch64``.

    python3 tools/try_wheel.py --host 3.6.0 --host 3.9.0    # fresh environments, one per Triton
    python3 tools/try_wheel.py --arch aarch64               # a cross-built one, in an emulator

For this machine: an empty virtual environment, Triton, the wheel of ``dist/``, ``triton-ext doctor
--selftest``, then the key of a kernel before, with and after it (unittest/test_no_trace.py).
For aarch64: Debian's Python for arm64 and Triton's wheel for aarch64 in qemu's user emulator, the
tests of the extension against a stand-in for libcuda, and every check of the selftest.

Guarantees: nothing outside of ``.venv/`` is written; what a step says stands above its result.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial

from environment import COMPANIONS, ROOT, EnvironmentProblem, say, timed

__all__ = ["main"]

HOSTS = ("3.6.0", "3.7.0", "3.7.1", "3.8.0", "3.9.0")
_FOLDER = ROOT / ".venv"
# Debian packages for Python on arm64, with ctypes and the C++ library of Triton.
_DEBS = (
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "zlib1g"),
    *("libexpat1", "libgcc-s1", "libffi8", "libbz2-1.0", "liblzma5", "libstdc++6", "libssl3"),
    *("libuuid1", "libcrypt1"),
)
_PLATFORMS = ("manylinux_2_27_aarch64", "manylinux_2_28_aarch64", "manylinux_2_34_aarch64")
_EMULATED_TRITON = "3.9.0"
# Suffixes of release numbers, oldest first.
_SUFFIXES = ("dev", "a", "b", "rc", "", "post")
# Starting another Python cannot be emulated without changing the machine.
_SELFTEST = """
from triton_ext.selftest.checks import CHECKS, CPU, GPU, TORCH
print("\\n".join(check.name for check in CHECKS if check.target not in (CPU, GPU, TORCH)))
"""


def wheel_for(arch: str) -> pathlib.Path:
    """Returns the wheel of ``dist/`` for a machine.

    Raises:
        EnvironmentProblem: There is none.
    """
    found = list((ROOT / "dist").glob(f"triton_ext-*_{arch}.whl"))
    if not found:
        raise EnvironmentProblem(f"no wheel for {arch} in dist/: run 'make wheel ARCH={arch}'")
    return max(found, key=version_order)


def version_order(wheel: pathlib.Path) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Returns a sort key of wheels by version (PEP 440, without epochs).

    Args:
        wheel: Its file, whose name contains the version.
    """
    version = wheel.name.split("-")[1].partition("+")[0]
    match = re.match(r"[\d.]*\d", version)
    release = match[0] if match is not None else "0"
    behind = version[len(release) :].strip("._-")
    kind = re.match(r"[a-z]*", behind)
    rank = _SUFFIXES.index(kind[0]) if kind is not None and kind[0] in _SUFFIXES else 0
    numbers = tuple(int(number) for number in re.findall(r"\d+", behind))
    return tuple(int(number) for number in release.split(".")), rank, numbers


def run(command: list[str], **variables: str) -> str:
    """Runs a command; returns what it prints.

    Raises:
        EnvironmentProblem: It failed; the text has its words.
    """
    environment = {**os.environ, **variables}
    for name in ("PYTHONPATH", "PYTHONHOME", "TRITON_INTERPRET"):
        if name not in variables:
            environment.pop(name, None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentProblem(f"{' '.join(command[:4])} ...\n{done.stdout}{done.stderr}")
    return done.stdout


def try_host(host: str) -> None:
    """Installs the wheel beside one Triton, runs the selftest, and takes it out again."""
    wheel, folder = wheel_for(platform.machine()), _FOLDER / f"wheel-{host}"
    python = folder / "bin" / "python"
    run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run([*pip, f"triton=={host}", *COMPANIONS.get(host, ("numpy",)), "pytest", "setuptools>=77"])
    before = _installed(python)
    run([*pip, "--no-index", "--no-deps", str(wheel)])
    say(_selftest_of(run([str(folder / "bin" / "triton-ext"), "doctor", "--selftest"])))
    run([str(python), "-m", "pip", "uninstall", "-q", "-y", "triton-ext"])
    if _installed(python) != before:
        raise EnvironmentProblem("uninstalling left files behind, or took others along")
    # Keys and cached files, before, with and after.
    trace = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    said = run(
        [str(python), *trace, "--import-mode=importlib", str(ROOT / "unittest/test_no_trace.py")],
        TRITON_EXT_WHEEL=str(wheel),
    )
    say(f"no trace: {said.strip().splitlines()[-1]}")
    shutil.rmtree(folder)


def _installed(python: pathlib.Path) -> set[str]:
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    files = (path.relative_to(site) for path in site.rglob("*"))
    return {str(path) for path in files if path.suffix != ".pyc" and path.name != "__pycache__"}


def _selftest_of(report: str) -> str:
    return report[report.index("\nSelftest") :].strip()


def try_aarch64() -> None:
    """Runs the wheel for aarch64 in qemu's user emulator."""
    wheel = wheel_for("aarch64")
    needed = ("qemu-aarch64", "aarch64-linux-gnu-gcc", "apt-get", "dpkg")
    missing = [program for program in needed if shutil.which(program) is None]
    if missing:
        raise EnvironmentProblem(
            f"{', '.join(missing)} not found; on Debian: apt install qemu-user "
            "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
        )
    folder = _FOLDER / "aarch64"
    root, site = folder / "root", folder / "site"
    if not (root / "usr/bin/python3.11").exists():
        timed("get Debian's Python for arm64", lambda: _get_python(folder))
    timed("install", lambda: _install_for_aarch64(site, wheel))
    # The compiler that tests call, and ptxas, run on this machine.
    (folder / "bin").mkdir(exist_ok=True)
    compiler = folder / "bin" / "cc"
    compiler.unlink(missing_ok=True)
    compiler.symlink_to(str(shutil.which("aarch64-linux-gnu-gcc")))
    with tempfile.TemporaryDirectory(prefix="triton-ext-aarch64-") as cache:
        variables = {
            "PATH": f"{compiler.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(site),
            "TRITON_CACHE_DIR": cache,
            **_ptxas_of_this_machine(),
        }
        emulated = [
            *("qemu-aarch64", "-L", str(root)),
            str(root / "usr/bin/python3.11"),
        ]
        tests = [str(ROOT / f"unittest/nvidia/test_{name}.py") for name in ("driver", "map_cache")]
        options = ["-q", "-p", "no:cacheprovider", "-m", "not gpu"]
        say(run([*emulated, "-m", "pytest", *options, *tests], **variables).strip())
        names = run([*emulated, "-c", _SELFTEST], **variables).split("\n")
        checks = [name for name in names if name]
        say(_checked(run([*emulated, "-m", "triton_ext.selftest", *checks], **variables)))


def _checked(output: str) -> str:
    """Returns the lines of ended checks.

    Raises:
        EnvironmentProblem: One failed.
    """
    lines = [line for line in output.splitlines() if '"status"' in line and "begun" not in line]
    failed = [line for line in lines if '"status": "no"' in line]
    if failed or not lines:
        raise EnvironmentProblem("\n".join(failed) or "the selftest said nothing")
    return "\n".join(lines)


def _get_python(folder: pathlib.Path) -> None:
    """Unpacks Debian's packages; apt keeps its lists in the folder, so the machine's are left."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("lists/partial", "cache/archives/partial", "debs", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    options = ["APT::Architecture=arm64", "APT::Architectures::=arm64"]
    options += [f"Dir::State::lists={folder / 'lists'}", f"Dir::State::status={folder / 'status'}"]
    options += [f"Dir::Cache={folder / 'cache'}"]
    apt = ["apt-get", *(part for option in options for part in ("-o", option))]
    run([*apt, "update"])
    done = subprocess.run([*apt, "download", *_DEBS], cwd=folder / "debs", check=False)
    if done.returncode != 0:
        raise EnvironmentProblem("apt cannot download Debian's packages for arm64")
    for package in (folder / "debs").glob("*.deb"):
        run(["dpkg", "-x", str(package), str(folder / "root")])


def _install_for_aarch64(site: pathlib.Path, wheel: pathlib.Path) -> None:
    options = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", "311"]
    for tag in _PLATFORMS:
        options += ["--platform", tag]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(site), *options]
    if not (site / "triton").exists():
        run([*pip, f"triton=={_EMULATED_TRITON}", "numpy", "pytest", "hypothesis"])
    for old in site.glob("triton_ext*"):
        shutil.rmtree(old)
    run([*pip, "--no-deps", "--no-index", str(wheel)])


def _ptxas_of_this_machine() -> dict[str, str]:
    """Where the same Triton has it for this machine; qemu cannot start what Triton starts."""
    folder = _FOLDER / f"test-{_EMULATED_TRITON}"
    pattern = "lib/python*/site-packages/triton/backends/nvidia/bin/ptxas"
    for path in folder.glob(pattern):
        blackwell = path.with_name("ptxas-blackwell")
        return {"TRITON_PTXAS_PATH": str(path), "TRITON_PTXAS_BLACKWELL_PATH": str(blackwell)}
    raise EnvironmentProblem(f"no {folder}: run 'make test-hosts HOSTS={_EMULATED_TRITON}' first")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", choices=("x86_64", "aarch64"), default=platform.machine())
    parser.add_argument("--host", action="append", help=f"release of Triton ({' '.join(HOSTS)})")
    arguments = parser.parse_args()
    tried: list[tuple[str, Callable[[], None]]]
    if arguments.arch != platform.machine():
        tried = [("aarch64, emulated", try_aarch64)]
    else:
        hosts = arguments.host or HOSTS
        tried = [(f"triton {host}", partial(try_host, host)) for host in hosts]
    failed = 0
    for title, action in tried:
        try:
            timed(f"wheel: {title}", action)
        except EnvironmentProblem as problem:
            failed += 1
            say(f"== wheel: {title}: FAILED\n{problem}")
    say(f"wheel: {len(tried) - failed} work, {failed} do not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
