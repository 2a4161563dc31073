"""Fixtures of all tests: a fresh Triton cache, a module of ``tools``, the GPU or its absence."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

import pytest


@pytest.fixture
def fresh_triton_cache(tmp_path, monkeypatch):
    """Gives the test a Triton cache of its own, so that it compiles what it says it compiles."""
    folder = tmp_path / "triton-cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(scope="module")
def tool(request):
    """The module behind ``TOOL``, the path of a program under ``tools``."""
    path = request.module.TOOL
    sys.path.insert(0, str(path.parent))  # for the neighbours that it imports
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # dataclasses look it up there
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.modules.pop(path.stem, None)
        sys.path.remove(str(path.parent))


@pytest.fixture(autouse=True)
def plugin_stays_installed():
    """What a test takes out is put back: kernels of later modules need the plugin."""
    plugin = sys.modules.get("triton_ext.plugin")
    was_installed = plugin is not None and plugin.is_installed()
    yield
    if was_installed and not plugin.is_installed():
        plugin.install()


def gpu_problem() -> str | None:
    """Tells why there is no usable GPU, or ``None`` if there is one."""
    try:
        import torch
    except ImportError:
        return "needs torch, which is not installed"
    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU, torch sees none"
    major, minor = torch.cuda.get_device_capability()
    if major < 9:
        return f"needs compute capability 9.0 or newer, the GPU has {major}.{minor}"
    return None


@pytest.fixture
def gpu():
    """Skips the test, with the reason, where there is no GPU that has TMA im2col."""
    problem = gpu_problem()
    if problem is not None:
        pytest.skip(problem)


def pytest_configure(config):
    import lost_context  # from a folder that is added below
    from hypothesis import settings

    # A loaded machine is no failure; speed is measured by benchmarks.
    settings.register_profile("triton-ext", deadline=None)
    settings.load_profile("triton-ext")

    lost_context.register(config)
    nightly = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
    if os.environ.get("TRITON_INTERPRET") == "1" and not nightly:
        import quick_interpreter

        quick_interpreter.hasten()


def pytest_addoption(parser):
    parser.addoption(
        "--shuffle", metavar="SEED", help="run files, and tests of a file, in any order"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    import host_plan

    host_plan.put_in_order(items, config.getoption("--shuffle"))
    on_a_gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    # Looking for a GPU imports torch.
    problem = gpu_problem() if on_a_gpu else None
    for item in on_a_gpu if problem is not None else ():
        item.add_marker(pytest.mark.skip(reason=problem))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    import host_plan

    host_plan.skip_what_is_shown(item)


# Tests import the benchmarks from the root.  Helper modules stand beside the tests that use them;
# importlib mode does not add their folder.
sys.path.append(str(pathlib.Path(__file__).parents[1]))
FOLDERS = (  # of those helpers
    ".",
    "language",
    "gluon",
    "nvidia",
    "host",
    "ir",
    "llvm_ir",
    "amd",
    "passes",
    "emulator",
    "ops",
    "gpu",
)
for folder in FOLDERS:
    sys.path.append(str(pathlib.Path(__file__).parent / folder))
