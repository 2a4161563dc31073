"""Detection of the installed Triton, and what is refused by name."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest
import triton
from triton_ext.errors import DriverError, TritonExtError, UnsupportedError
from triton_ext.host import SUPPORTED, HostError, capabilities, detect, require
from triton_ext.host import capabilities as capabilities_module
from triton_ext.host.detect import wrap_create_driver


@pytest.fixture(autouse=True)
def _forget():
    detect.cache_clear()
    yield
    detect.cache_clear()
    capabilities.cache_clear()


def pretend(monkeypatch, version, recorded=None):
    monkeypatch.setattr(triton, "__version__", version)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: recorded or version)
    # The library beside it cannot pretend (test_half_upgraded.py).
    module = sys.modules[detect.__module__]
    monkeypatch.setattr(module, "_IN_LIBRARY_SINCE", {})


def test_the_installed_triton():
    host = detect()
    assert host.version == triton.__version__
    assert host.tested
    assert SUPPORTED[0] <= host.release <= SUPPORTED[1]


def test_a_newer_triton_is_used_but_not_called_tested(monkeypatch):
    pretend(monkeypatch, "3.10.1+git123")
    assert detect().release == (3, 10)
    assert not detect().tested


def test_an_older_triton_is_refused(monkeypatch):
    pretend(monkeypatch, "3.5.1")
    with pytest.raises(HostError, match=r"3\.5\.1 is too old.*pip install"):
        detect()


def test_a_half_finished_upgrade_is_refused(monkeypatch):
    pretend(monkeypatch, "3.9.0", recorded="3.8.0")
    with pytest.raises(HostError, match=r"metadata says triton 3\.8\.0, the library says 3\.9\.0"):
        detect()


def test_two_records_beside_each_other_are_refused(monkeypatch, tmp_path):
    """What an upgrade leaves that was interrupted behind the new files."""
    pretend(monkeypatch, "3.9.0")
    monkeypatch.setattr(triton, "__file__", str(tmp_path / "triton" / "__init__.py"))
    for version in ("3.8.0", "3.9.0"):
        (tmp_path / f"triton-{version}.dist-info").mkdir()
        (tmp_path / f"triton-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n"
        )
    with pytest.raises(HostError, match=r"says triton 3\.8\.0 and 3\.9\.0, .* half-finished"):
        detect()


def test_what_is_told_by_the_release_is_known():
    probed = {name for name, c in capabilities().items() if c.probed}
    assert {"im2col", "im2col-gluon", "amd-tdm-rows", "interpreter"} <= probed
    assert not {"stages-hook-key", "amd-async-marks", "broadcasts-by-shuffle"} & probed


def test_a_version_that_cannot_be_read_is_refused(monkeypatch):
    pretend(monkeypatch, "main")
    with pytest.raises(HostError, match="cannot read the version"):
        detect()


def test_no_triton_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(HostError, match="no Triton is installed: pip install"):
        detect()


def test_host_error_is_ours():
    assert issubclass(HostError, UnsupportedError)
    assert issubclass(HostError, TritonExtError)


# docs/support.md, as known for the releases of the test run.
NEW = {
    (3, 6): {"im2col", "im2col-gluon", "stages-hook-key", "wgmma-join"},
    (3, 7): {
        *("amd-async-stores", "amd-tdm-rows", "amd-tdm-intrinsic-wait", "ttg-barrier"),
    },
    (3, 8): {
        *("im2col-copies", "amd-async-marks", "amd-masked-loads-predicated"),
        *("amd-partitioned-shared", "fp32-dots-of-8", "arrival-barriers"),
        *("amd-gfx1251", "amd-tdm-rows-by-layout", "reductions-by-conversion"),
    },
    (3, 9): {
        *("amd-tdm-fused", "amd-partition-placement", "broadcasts-by-shuffle"),
        *("nvidia-matrix-rows", "ordering-barriers"),
    },
}
AVAILABLE = {
    release: set().union(*(new for since, new in NEW.items() if since <= release))
    for release in NEW
}


def test_capabilities_are_those_of_the_release():
    # The interpreter's depends on the numpy beside it as well.
    available = {name for name, c in capabilities().items() if c.available} - {"interpreter"}
    assert available == AVAILABLE[detect().release]


def test_a_missing_capability_says_what_to_install():
    for name, capability in capabilities().items():
        assert capability.name == name
        assert capability.summary
        assert capability.available == (not capability.reason)
        if capability.available:
            require(name)
        else:
            with pytest.raises(UnsupportedError, match="pip install"):
                require(name)


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1"])
def test_a_host_without_im2col_in_gluon_is_refused_by_name(monkeypatch, version):
    """What a user of an older host reads, on any host."""
    table = tuple(
        (name, summary, (lambda: False) if name == "im2col-gluon" else probe, reason)
        for name, summary, probe, reason in sys.modules[capabilities_module.__module__]._TABLE
    )
    monkeypatch.setattr(sys.modules[capabilities_module.__module__], "_TABLE", table)
    pretend(monkeypatch, version)
    capabilities.cache_clear()
    message = (
        rf"triton {version} has no im2col descriptors.*3\.8 or newer: pip install 'triton>=3\.8'"
    )
    with pytest.raises(UnsupportedError, match=message):
        require("im2col-gluon")


def test_a_launch_without_a_gpu_says_both_ways_out(tmp_path):
    """In a process of its own: Triton keeps the driver that it finds."""
    script = tmp_path / "no_gpu.py"
    script.write_text(
        "import os\n"
        "import triton, triton_ext\n"
        "from triton.runtime.driver import driver\n"
        "from triton.backends import backends\n"
        "triton_ext.install()\n"
        "for backend in backends.values():\n"
        "    backend.driver.is_active = staticmethod(lambda: False)\n"
        "@triton.jit\n"
        "def nothing():\n"
        "    pass\n"
        "try:\n"
        "    nothing[(1,)]()\n"
        "except triton_ext.errors.DriverError as error:\n"
        "    assert isinstance(error, RuntimeError)\n"
        "    print(error)\n"
        "triton_ext.uninstall()\n"
        "try:\n"
        "    nothing[(1,)]()\n"
        "except RuntimeError as error:\n"
        "    print(type(error).__name__)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment, capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    message, stock = done.stdout.splitlines()
    assert "set TRITON_INTERPRET=1 before the program starts" in message
    assert "triton_ext.emulated(kernel, target)[grid](...)" in message
    assert "0 active drivers" in message
    assert stock == "RuntimeError"


def test_other_failures_of_drivers_stay_as_they_are():
    def fails():
        raise RuntimeError("2 active drivers ([a, b]). There should only be one.")

    wrapped = wrap_create_driver(fails, lambda: True)
    with pytest.raises(RuntimeError, match=r"^2 active drivers") as caught:
        wrapped()
    assert not isinstance(caught.value, DriverError)
