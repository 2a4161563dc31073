"""triton-ext doctor: tells what is there, survives what is broken."""

from __future__ import annotations

import ctypes
import json
import sys
import types

import pytest
import triton
from triton_ext import backends
from triton_ext.host import HostError, capabilities
from triton_ext.tools import cli, doctor


def by_topic(findings):
    return {finding.topic: finding for finding in findings}


def put_driver(monkeypatch, driver):
    """Puts a driver, or None for none, in place of libcuda; other libraries are loaded."""
    real = ctypes.CDLL

    def library(name, *args, **kwargs):
        if "libcuda" not in str(name):
            return real(name, *args, **kwargs)
        if driver is None:
            raise OSError(f"{name}: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", library)


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without a driver and a torch that sees nothing."""
    monkeypatch.setattr(doctor, "_gpus_of_torch", lambda: ())

    put_driver(monkeypatch, None)
    status = types.SimpleNamespace(library="libcuda.so.1", version=None, problem="no driver here")
    real = backends.load

    def load(vendor, name):
        return (lambda: status) if name == "driver_status" else real(vendor, name)

    monkeypatch.setattr(doctor.backends, "load", load)


def test_without_a_gpu(no_gpu, capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"{triton.__version__} (tested)" in out
    assert "no driver here" in out
    for title in ("Installed", "What this Triton offers", "What works here"):
        assert title in out


def test_what_works_without_a_gpu(no_gpu):
    report = doctor.examine()
    works = by_topic(report.works)
    assert report.usable
    launch = works["launch on this GPU"]
    assert not launch.good
    assert "CUDA driver, GPU" in launch.text
    assert by_topic(report.facts)["CUDA driver"].text == "no driver here"
    assert works["compile for sm_90 and sm_100"].good is capabilities()["im2col"].available
    assert set(capabilities()) == set(by_topic(report.capabilities))


def test_json_is_the_report(no_gpu, capsys):
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {
        *("facts", "capabilities", "works", "usable", "unconfirmed", "selftest"),
    }
    assert (report["unconfirmed"], report["selftest"]) == ([], [])
    assert report["usable"] is True
    assert {"topic", "good", "text"} == set(report["facts"][0])


def test_without_a_usable_triton(no_gpu, monkeypatch, capsys):
    def refuse():
        raise HostError("no Triton is installed: pip install 'triton>=3.8'")

    monkeypatch.setattr(sys.modules["triton_ext.host"], "detect", refuse)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "no Triton is installed: pip install" in out
    assert "yes  compile" not in out


@pytest.fixture
def newer_triton(monkeypatch):
    """A release that nobody has seen yet."""
    import importlib.metadata

    from triton_ext.host import detect

    detect.cache_clear()
    capabilities.cache_clear()
    real = importlib.metadata.version
    monkeypatch.setattr(triton, "__version__", "3.99.0")
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "3.99.0" if name == "triton" else real(name)
    )
    yield
    monkeypatch.undo()
    detect.cache_clear()
    capabilities.cache_clear()


def test_a_newer_triton_is_not_vouched_for(no_gpu, newer_triton, capsys):
    report = doctor.examine()
    assert report.usable
    assert "not tested with triton-ext" in by_topic(report.facts)["triton"].text
    assert "amd-async-marks" in report.unconfirmed
    assert "im2col-gluon" not in report.unconfirmed
    assert cli.main(["doctor"]) == 0
    assert "Not confirmed: this release is not tested" in capsys.readouterr().out


def test_an_old_gpu_is_named(no_gpu, monkeypatch):
    monkeypatch.setattr(doctor, "_gpus_of_torch", lambda: (doctor._Gpu("NVIDIA A100", (8, 0)),))
    report = doctor.examine()
    assert by_topic(report.facts)["GPU"].text == "NVIDIA A100, compute capability 8.0 (sm_80)"
    assert "GPU of sm_90 or newer" in by_topic(report.works)["launch on this GPU"].text


def test_a_torch_that_does_not_load_is_a_line(no_gpu, monkeypatch):
    real = doctor.importlib.import_module

    def broken(name, *args):
        if name == "numpy":
            raise ImportError("libsomething.so: not found")
        return real(name, *args)

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "1.0")
    finding = by_topic(doctor.examine().facts)["numpy"]
    assert finding.good is False
    assert finding.text == "1.0 is installed, but does not load: libsomething.so: not found"


class FakeDriver:
    """Enough of libcuda to be asked for its GPUs."""

    def __init__(self, result=0):
        self.result = result

    def cuInit(self, flags):
        return self.result

    def cuDeviceGetCount(self, number):
        number._obj.value = 1
        return 0

    def cuDeviceGet(self, device, index):
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name, length, device):
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = {75: 9, 76: 0}[attribute]
        return 0


def test_asks_the_driver_where_torch_sees_nothing(no_gpu, monkeypatch):
    put_driver(monkeypatch, FakeDriver())
    assert by_topic(doctor.examine().facts)["GPU"].text == (
        "NVIDIA H200, compute capability 9.0 (sm_90)"
    )


def test_a_driver_that_refuses_is_a_line(no_gpu, monkeypatch):
    put_driver(monkeypatch, FakeDriver(result=100))
    finding = by_topic(doctor.examine().facts)["GPU"]
    assert finding.good is False
    assert finding.text == "none: cuInit says error 100"


@pytest.mark.parametrize("words", [["doctor", "--fast"], ["tune", "m.py", "--fast"]])
def test_an_unknown_option_is_told_by_the_command(words, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"usage: triton-ext {words[0]} ")
    assert f"triton-ext {words[0]}: error: unrecognized arguments: --fast" in told


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("triton-ext ")
