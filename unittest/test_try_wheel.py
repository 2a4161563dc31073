"""tools/try_wheel.py: which wheel of several is tried."""

from __future__ import annotations

import pathlib

import pytest

TOOL = pathlib.Path(__file__).parent.parent / "tools" / "try_wheel.py"


VERSIONS = ["0.9", "0.9.1", "0.10.0.dev2", "0.10.0a1", "0.10.0rc2", "0.10.0rc10", "0.10.0"]
VERSIONS += ["0.10.0.post1", "0.10.1+local", "1.0"]


@pytest.mark.parametrize("newest", range(1, len(VERSIONS) + 1))
def test_the_newest_version_is_tried(tool, tmp_path, monkeypatch, newest):
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "dist").mkdir()
    names = [f"triton_ext-{version}-cp310-abi3-manylinux_x86_64.whl" for version in VERSIONS]
    for name in names[:newest]:
        (tmp_path / "dist" / name).touch()
    (tmp_path / "dist" / "triton_ext-9.0-cp310-abi3-manylinux_aarch64.whl").touch()
    assert tool.wheel_for("x86_64").name == names[newest - 1]


def test_no_wheel(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    with pytest.raises(tool.EnvironmentProblem, match="no wheel for x86_64 in dist/: run 'make"):
        tool.wheel_for("x86_64")
