"""Builds the wheel and the sdist, twice, and compares the bytes: ``make wheel``.

    python3 tools/build_wheel.py                  # dist/: a wheel for this machine and the sdist
    python3 tools/build_wheel.py --arch aarch64   # for another one, with its cross compiler

Guarantees: both files are made of what git tracks, have the times of the last commit, sorted
entries and no owners; no file holds a path of the build or of its Python; two builds in folders of
different names give the same bytes, or nothing is written.  The platform tag is the oldest
manylinux that auditwheel finds the extension to be consistent with.  The wheel is built from the
sdist, so the sdist is whole.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from base64 import urlsafe_b64encode

from environment import ROOT, say

__all__ = ["Refused", "main", "normalize_sdist", "normalize_wheel"]

# auditwheel is the Python Packaging Authority's own and follows the manylinux policies; reading the
# versions of symbols ourselves would mean keeping a copy of those policies.  Exact versions: what
# they write (the Generator line, the metadata) is part of the bytes.
TOOLS = ("setuptools==80.9.0", "build==1.6.1", "auditwheel==6.8.2")

ARCHITECTURES = ("x86_64", "aarch64")
_EXTENSION = ".abi3.so"
# The first time that a zip can hold.
_ZIP_BEGIN = 315532800


class Refused(Exception):
    """Nothing is built; the text is a sentence for the user."""


def tracked_files() -> list[pathlib.PurePath]:
    """Returns what git tracks: left-overs of other builds must not get into a release.

    Raises:
        Refused: This is no git checkout.
    """
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Refused("not a git checkout: a release is made of what git tracks")
    names = [name for name in done.stdout.split("\0") if name]
    return [pathlib.PurePath(name) for name in names if (ROOT / name).is_file()]


def epoch() -> int:
    """Returns the time of every file: ``SOURCE_DATE_EPOCH``, else the last commit's.

    Raises:
        Refused: The variable holds no number, or there is no commit.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        command = ["git", "log", "-1", "--format=%ct"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Refused("no commit to take the time from: set SOURCE_DATE_EPOCH")
        given = done.stdout.strip()
    if not given.isdigit():
        raise Refused(f"SOURCE_DATE_EPOCH={given}: expected seconds since 1970")
    return max(int(given), _ZIP_BEGIN)


def compiler_for(arch: str) -> dict[str, str]:
    """Returns the environment variables with which setuptools compiles for a machine.

    Raises:
        Refused: This is another machine and its cross compiler is not there.
    """
    if arch == platform.machine():
        # Avoid Python's own link flags, such as a run path of its folder.
        return {"CC": "gcc", "LDSHARED": "gcc -shared"}
    compiler = f"{arch}-linux-gnu-gcc"
    if shutil.which(compiler) is None:
        raise Refused(
            f"a wheel for {arch} cannot be built on {platform.machine()} without {compiler} "
            f"(on Debian and Ubuntu: apt install gcc-{arch.replace('_', '-')}-linux-gnu); "
            f"or run make wheel on {arch}"
        )
    return {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
        # Names the file *.abi3.so whatever this machine is.
        "SETUPTOOLS_EXT_SUFFIX": _EXTENSION,
    }


def build(python: pathlib.Path, folder: pathlib.Path, arch: str, when: int) -> list[pathlib.Path]:
    """Builds both files in a folder of its own; returns them, normalized.

    Raises:
        Refused: A step failed.
    """
    source, out = folder / "source", folder / "out"
    for name in tracked_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    environment = {**os.environ, **compiler_for(arch)}
    for variable in ("PYTHONPATH", "CFLAGS", "LDFLAGS", "DIST_EXTRA_CONFIG"):
        environment.pop(variable, None)
    environment["SOURCE_DATE_EPOCH"] = str(when)
    environment["TMPDIR"] = str(folder)
    command = [str(python), "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    _checked(command, "the build failed", environment)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    normalize_sdist(sdist, when)
    tag = platform_tag(python, wheel, arch)
    return [normalize_wheel(wheel, tag, when), sdist]


def platform_tag(python: pathlib.Path, wheel: pathlib.Path, arch: str) -> str:
    """Returns the oldest manylinux tag that auditwheel finds a wheel to be consistent with.

    Raises:
        Refused: auditwheel finds none.
    """
    text = _checked([str(python), "-m", "auditwheel", "show", str(wheel)], "auditwheel failed")
    found = re.search(rf'"(manylinux_\d+_\d+_{arch})"', " ".join(text.split()))  # pattern: a name
    if found is None:
        raise Refused(f"auditwheel finds no manylinux tag for the wheel:\n{text}")
    return found[1]


def normalize_wheel(wheel: pathlib.Path, platform: str, when: int) -> pathlib.Path:
    """Writes a wheel again: platform tag, sorted entries, one time; returns its new path.

    Raises:
        Refused: A file holds a path of the build.
    """
    with zipfile.ZipFile(wheel) as archive:
        contents = {info.filename: archive.read(info) for info in archive.infolist()}
    (tags,) = (name for name in contents if name.endswith(".dist-info/WHEEL"))
    (record,) = (name for name in contents if name.endswith(".dist-info/RECORD"))
    name, version, python, abi, _ = wheel.stem.split("-")
    contents[tags] = re.sub(
        rb"^Tag: .*$", f"Tag: {python}-{abi}-{platform}".encode(), contents[tags], flags=re.M
    )
    del contents[record]
    for folder in (str(wheel.parent.parent), str(ROOT), sys.base_prefix + "/lib"):
        for path, content in contents.items():
            # /usr/lib is a path of every machine, and no trace of this one.
            if folder.encode() in content and folder != "/usr/lib":
                raise Refused(f"{path} holds {folder}, a path of the build")
    lines = [f"{path},{_digest(contents[path])},{len(contents[path])}" for path in sorted(contents)]
    contents[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    target = wheel.with_name(f"{name}-{version}-{python}-{abi}-{platform}.whl")
    wheel.unlink()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        # RECORD last, as the format recommends.
        for path in [*sorted(contents.keys() - {record}), record]:
            info = zipfile.ZipInfo(path, time.gmtime(when)[:6])
            mode = 0o755 if path.endswith(".so") else 0o644
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, (0o100000 | mode) << 16
            archive.writestr(info, contents[path])
    return target


def normalize_sdist(sdist: pathlib.Path, when: int) -> None:
    """Writes an sdist again in place: sorted entries, one time, no owners."""
    with tarfile.open(sdist) as archive:
        members = sorted((m for m in archive if m.isfile()), key=lambda m: m.name)
        contents = [(m.name, m.mode, archive.extractfile(m)) for m in members]
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
            for name, mode, stream in contents:
                data = stream.read() if stream is not None else b""
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(data), when
                info.mode = 0o755 if mode & 0o100 else 0o644
                new.addfile(info, io.BytesIO(data))
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=when) as packed:
        packed.write(plain.getvalue())


def _digest(content: bytes) -> str:
    return "sha256=" + urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def _checked(command: list[str], problem: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"{problem}:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def _tools() -> pathlib.Path:
    """Returns the Python of the environment that has the build's tools."""
    folder = ROOT / ".venv" / "wheel"
    python, stamp = folder / "bin" / "python", folder / "tools.stamp"
    if not stamp.exists() or stamp.read_text() != " ".join(TOOLS):
        _checked([sys.executable, "-m", "venv", "--clear", str(folder)], "no environment")
        _checked(
            [str(python), "-m", "pip", "install", "-q", *TOOLS], "pip cannot install the tools"
        )
        stamp.write_text(" ".join(TOOLS))
    return python


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", choices=ARCHITECTURES, default=platform.machine())
    parser.add_argument("--outdir", type=pathlib.Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    try:
        compiler_for(arguments.arch)
        when, python = epoch(), _tools()
        with tempfile.TemporaryDirectory(prefix="triton-ext-wheel-") as folder:
            names = ("one", "another-and-longer")
            results = [
                build(python, pathlib.Path(folder, name), arguments.arch, when) for name in names
            ]
            for one, other in zip(*results, strict=True):
                if one.name != other.name or one.read_bytes() != other.read_bytes():
                    raise Refused(f"two builds of {one.name} differ; nothing is written")
            if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode:
                say("note: tracked files differ from the commit; this is no release of it")
            arguments.outdir.mkdir(parents=True, exist_ok=True)
            for path in results[0]:
                shutil.copy(path, arguments.outdir / path.name)
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                say(f"{path.name}  {path.stat().st_size} bytes, twice the same, sha256 {digest}")
    except Refused as problem:
        say(f"error: {problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
