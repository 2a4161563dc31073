"""A Triton older or newer than those of the test run: refused, or used for what probes confirm."""

from __future__ import annotations

import json

import pytest
import triton
from doctored import DOCTOR, Copy
from triton_ext.host import SUPPORTED, capabilities

NEWER = ["3.10.0", "4.0.1", "3.10.0+git0123456"]


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


@pytest.mark.parametrize("version", ["3.5.1", "2.3.0"])
def test_an_older_one_is_refused(copy, version):
    copy.say_version(version)
    copy.record(version)
    wanted = f"triton {version} is too old, triton-ext needs 3.6 or newer: pip install"
    assert copy.says().startswith(f"HostError {wanted}")
    done = copy.run("-c", "import triton_ext.language")
    assert done.returncode == 1
    assert wanted in done.stderr
    done = copy.run("-c", DOCTOR)
    assert done.returncode == 1
    assert wanted in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("version", NEWER)
def test_a_newer_one_is_used_and_what_is_not_confirmed_is_named(copy, version):
    copy.say_version(version)
    copy.record(version)
    assert copy.says() == f"found {version}"
    done = copy.run("-c", DOCTOR.replace("'doctor'", "'doctor', '--json'"))
    assert done.returncode == 0
    report = json.loads(done.stdout)
    found = {fact["topic"]: fact["text"] for fact in report["facts"]}
    first, last = (".".join(map(str, release)) for release in SUPPORTED)
    assert f"{version} (not tested with triton-ext, which covers {first}-{last})" in found["triton"]
    assert "stages-hook-key" in report["unconfirmed"]
    offered = {each["topic"]: each for each in report["capabilities"]}
    # What nobody has read the text of is refused, though nothing is seen to lack.
    assert not offered["wgmma-join"]["good"]
    assert f"triton {version} is newer than the releases" in offered["wgmma-join"]["text"]
    # Probes see through the number: what this library lacks is refused, by name.
    for name, capability in capabilities().items():
        if not capability.probed or name in ("interpreter", "im2col", "im2col-gluon"):
            continue
        assert offered[name]["good"] is capability.available, name
        if not capability.available:
            wanted = f"triton {version} is newer than the releases that are tested, and {name} was"
            assert wanted in offered[name]["text"]
            assert f"pip install 'triton~={last}.0'" in offered[name]["text"]


COMPILE = """
from triton_ext.selftest import kernels
print(kernels.compile_conv("sm_90")["ptx"].count(".im2col."))
"""


def test_a_newer_one_compiles_what_its_probes_confirm(copy):
    copy.say_version("3.10.0")
    copy.record("3.10.0")
    done = copy.run("-c", COMPILE)
    if capabilities()["im2col-copies"].available:
        assert done.stdout.strip() == "3", done.stderr
    else:
        # Where the library lacks it, the error says which Triton to take.
        assert done.returncode == 1
        assert "im2col" in done.stderr
        assert "newer than the releases that are tested" in done.stderr
    assert triton.__version__ != "3.10.0"
