"""tools/build_wheel.py: the same bytes whatever the order, time and owner; refusals in words."""

from __future__ import annotations

import io
import pathlib
import tarfile
import time
import zipfile

import pytest

TOOL = pathlib.Path(__file__).parent.parent / "tools" / "build_wheel.py"
WHEN = 1_700_000_000


FILES = {
    "pkg/__init__.py": b"",
    "pkg/a.so": b"\x7fELF",
    "pkg-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: cp310-abi3-linux_x86_64\n",
    "pkg-1.dist-info/RECORD": b"nothing true",
}


def wheel_in(folder, names, when, **more):
    folder = folder / "out"
    folder.mkdir(parents=True)
    path = folder / "pkg-1-cp310-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo(name, time.gmtime(when)[:6])
            archive.writestr(info, more.get("content") or FILES[name])
    return path


def test_a_wheel_does_not_tell_how_it_was_packed(tool, tmp_path):
    one = wheel_in(tmp_path / "one", FILES, WHEN)
    other = wheel_in(tmp_path / "other", reversed(FILES), WHEN + 5000)
    results = [tool.normalize_wheel(path, "manylinux_2_34_x86_64", WHEN) for path in (one, other)]
    assert results[0].read_bytes() == results[1].read_bytes()
    assert {path.name for path in results} == {"pkg-1-cp310-abi3-manylinux_2_34_x86_64.whl"}
    with zipfile.ZipFile(results[0]) as archive:
        record = "pkg-1.dist-info/RECORD"
        assert archive.namelist() == [*sorted(set(FILES) - {record}), record]
        tags = archive.read("pkg-1.dist-info/WHEEL").decode()
        assert "Tag: cp310-abi3-manylinux_2_34_x86_64\n" in tags
        record = archive.read("pkg-1.dist-info/RECORD").decode().splitlines()
        # The digest of nothing, as RECORD spells it.
        assert "pkg/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0" in record
        assert record[-1] == "pkg-1.dist-info/RECORD,,"
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
        assert (modes["pkg/a.so"], modes["pkg/__init__.py"]) == (0o755, 0o644)


def test_a_path_of_the_build_is_refused(tool, tmp_path):
    folder = tmp_path / "one"
    leaking = wheel_in(folder, FILES, WHEN, content=f"Tag: x\n{folder}/source/driver.c".encode())
    with pytest.raises(tool.Refused, match=r"holds .*/one, a path of the build"):
        tool.normalize_wheel(leaking, "manylinux_2_34_x86_64", WHEN)


def test_an_sdist_does_not_tell_how_it_was_packed(tool, tmp_path):
    results = []
    for index, names in enumerate((["pkg/a", "pkg/b"], ["pkg/b", "pkg/a"])):
        path = tmp_path / f"{index}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size, info.mtime, info.uid = 4, WHEN + index, index
                archive.addfile(info, io.BytesIO(name[-1].encode() * 4))
        tool.normalize_sdist(path, WHEN)
        results.append(path.read_bytes())
    assert results[0] == results[1]
    with tarfile.open(tmp_path / "0.tar.gz") as archive:
        assert [(m.name, m.mtime, m.uid) for m in archive] == [
            ("pkg/a", WHEN, 0),
            ("pkg/b", WHEN, 0),
        ]


def test_another_machine_needs_its_compiler(tool, monkeypatch):
    monkeypatch.setattr(tool.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    with pytest.raises(tool.Refused, match="cannot be built on x86_64 without aarch64-linux-gnu-"):
        tool.compiler_for("aarch64")
    monkeypatch.setattr(tool.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert tool.compiler_for("aarch64")["CC"] == "aarch64-linux-gnu-gcc"


def test_the_time_is_given_or_the_commits(tool, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(WHEN))
    assert tool.epoch() == WHEN
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert tool.epoch() == 315532800  # a zip holds nothing older than 1980
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(tool.Refused, match="SOURCE_DATE_EPOCH=yesterday: expected seconds"):
        tool.epoch()
