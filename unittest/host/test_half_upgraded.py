"""A Triton of two releases, as an interrupted upgrade leaves it, is refused by name."""

from __future__ import annotations

import pathlib
import sys

import doctored
import pytest
import triton
from doctored import DOCTOR, INSTALLED, Copy

ROOT = pathlib.Path(__file__).parents[2]
# A release that this one is not.
OTHER = {"3.6": "3.7.1", "3.7": "3.6.0", "3.8": "3.9.0", "3.9": "3.8.0"}[triton.__version__[:3]]


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


def reinstall(version):
    return f"a half-finished upgrade; pip install --force-reinstall --no-deps 'triton=={version}'"


def test_a_whole_one_is_found(copy):
    copy.record(triton.__version__)
    assert copy.says() == f"found {triton.__version__}"


def test_metadata_of_another_release(copy):
    copy.record(OTHER)
    said = copy.says()
    assert said.startswith("HostError ")
    assert f"metadata says triton {OTHER}, the library says {triton.__version__}" in said
    assert f"pip install --force-reinstall --no-deps 'triton=={OTHER}'" in said


def test_no_metadata(copy):
    said = copy.says()
    assert f"HostError triton {triton.__version__} lies in " in said
    assert said.endswith(reinstall(triton.__version__))


def test_no_metadata_outside_of_a_site_folder_is_nobodys_upgrade(copy):
    elsewhere = copy.folder / "elsewhere"
    elsewhere.mkdir()
    (copy.site / "triton").rename(elsewhere / "triton")
    done = copy.run("-c", f"import sys; sys.path.insert(0, {str(elsewhere)!r})\n{doctored.TELL}")
    assert done.stdout.strip() == f"found {triton.__version__}"


def test_metadata_of_two_releases(copy):
    copy.record(triton.__version__)
    copy.record(OTHER)
    said = copy.says()
    assert said.startswith("HostError ")
    assert "half-finished upgrade" in said


def test_python_files_and_metadata_of_another_release(copy):
    """Only the library is of the old one, or of the new one."""
    copy.say_version(OTHER)
    copy.record(OTHER)
    said = copy.says()
    assert f"HostError the Python files of the installed triton say {OTHER}, its library " in said
    assert f"libtriton.so is of {triton.__version__[:3]}" in said
    assert said.endswith(reinstall(OTHER))


def test_a_build_between_two_releases_is_not_refused(copy):
    copy.say_version(f"{OTHER}+git0123456")
    copy.record(f"{OTHER}+git0123456")
    assert copy.says() == f"found {OTHER}+git0123456"


def other_libraries():
    """libtriton.so of other releases: environments that make test-hosts made beside this one."""
    here = INSTALLED.parents[3].parent
    pattern = "*/lib/python*/site-packages/triton/_C/libtriton.so"
    paths = sorted(here.glob(pattern)) + sorted((ROOT / ".venv").glob(pattern))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return {
        release: path
        for path in paths
        if version in path.parts
        and (release := released(path.parents[2])) not in ("", triton.__version__[:3])
    }


def released(site):
    found = sorted(site.glob("triton-*.dist-info"))
    return found[0].name.split("-")[1][:3] if found else ""


@pytest.mark.parametrize("release", sorted({"3.6", "3.7", "3.8", "3.9"} - {triton.__version__[:3]}))
def test_the_library_of_another_release(copy, release):
    library = other_libraries().get(release)
    if library is None:
        pytest.skip(f"needs an environment with triton {release} beside this one")
    copy.record(triton.__version__)
    copy.replace("_C/libtriton.so", library)
    said = copy.says()
    assert said.startswith("HostError ")
    assert "half-finished upgrade; pip install --force-reinstall --no-deps" in said
    assert f"'triton=={triton.__version__}'" in said
    done = copy.run("-c", DOCTOR)
    assert done.returncode == 1
    assert "half-finished upgrade" in done.stdout
    assert "Traceback" not in done.stderr


def test_doctor_names_files_that_pip_did_not_install(copy):
    folder = copy.record(triton.__version__)
    sizes = {name: (INSTALLED / name).stat().st_size for name in ("knobs.py", "testing.py")}
    lines = [f"triton/{name},sha256=x,{size}" for name, size in sizes.items()]
    (folder / "RECORD").write_text("\n".join([*lines, f"{folder.name}/RECORD,,", ""]))
    assert "triton's files" not in copy.run("-c", DOCTOR).stdout
    copy.replace("knobs.py", (INSTALLED / "knobs.py").read_text() + "# patched\n")
    done = copy.run("-c", DOCTOR)
    assert "triton/knobs.py: not what pip installed" in done.stdout
    assert done.returncode == 0
