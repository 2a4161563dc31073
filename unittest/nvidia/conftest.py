"""What the tests of the NVIDIA backend share: tensors without torch, and a stand-in for libcuda."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from types import ModuleType

import pytest
from stand_in_tensor import Tensor
from triton_ext.backends.nvidia.backend import driver
from triton_ext.backends.nvidia.backend.map_cache import MAPS

C_FOLDER = pathlib.Path(__file__).parent / "c"


@pytest.fixture
def make_tensor() -> type[Tensor]:
    """Builds tensors: ``make_tensor(shape, dtype="float16", strides=None, address=...)``."""
    return Tensor


# In the order of fake_state in fake_libcuda.h.
STATE_FIELDS = (
    "driver_version",
    "version_result",
    "is_initialized",
    "init_result",
    "has_context",
    "current_result",
    "pointer_result",
    "pointer_device",
    "retain_result",
    "push_result",
    "encode_result",
    "replace_result",
    "has_error_texts",
    "inits",
    "encodes",
    "replaces",
    "retains",
    "releases",
    "pushes",
    "pops",
)


class StandIn:
    """A compiled stand-in for libcuda, and a copy of the extension that uses it.

    The copy of the extension has its own state, so the library that the rest of the process uses
    is not touched.
    """

    def __init__(self, extension: ModuleType, path: pathlib.Path, old_path: pathlib.Path) -> None:
        self.extension = extension
        self.path = path
        self.old_path = old_path
        self._library = ctypes.CDLL(str(path))
        self._library.fake_libcuda_state.restype = ctypes.POINTER(ctypes.c_int)

    def reset(self) -> None:
        self._library.fake_libcuda_reset()

    def get(self, field: str) -> int:
        return int(self._library.fake_libcuda_state()[STATE_FIELDS.index(field)])

    def set(self, field: str, value: int) -> None:
        self._library.fake_libcuda_state()[STATE_FIELDS.index(field)] = value


@pytest.fixture(scope="session")
def _built_stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    spec = importlib.util.find_spec("triton_ext.backends.nvidia.backend._driver")
    if spec is None or spec.origin is None or spec.origin.endswith(".pyi"):
        pytest.skip("the C extension triton_ext.backends.nvidia.backend._driver is not built")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of libcuda")
    folder = tmp_path_factory.mktemp("libcuda")
    paths = (folder / "libcuda.so.1", folder / "old" / "libcuda.so.1")
    for path, flags in zip(paths, ((), ("-DFAKE_WITHOUT_IM2COL",)), strict=True):
        path.parent.mkdir(exist_ok=True)
        source = C_FOLDER / "fake_libcuda.c"
        command = [compiler, "-std=c11", "-shared", "-fPIC", *flags, str(source), "-o", str(path)]
        subprocess.run(command, check=True)
    copied = folder / pathlib.Path(spec.origin).name
    shutil.copy(spec.origin, copied)
    loader = importlib.machinery.ExtensionFileLoader("_driver", str(copied))
    copy_spec = importlib.util.spec_from_file_location("_driver", copied, loader=loader)
    assert copy_spec is not None
    extension = importlib.util.module_from_spec(copy_spec)
    loader.exec_module(extension)
    return StandIn(extension, *paths)


@pytest.fixture(scope="session")
def state_fields() -> tuple[str, ...]:
    """Names of the stand-in's counters and switches, in order."""
    return STATE_FIELDS


@pytest.fixture
def stand_in(_built_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in as the driver that ``driver.py`` opens; healthy, on every thread."""
    _built_stand_in.reset()
    MAPS.clear()
    monkeypatch.setattr(driver, "_extension", lambda: _built_stand_in.extension)
    monkeypatch.setattr(driver, "_is_open", False)
    monkeypatch.setattr(driver, "library_path", lambda: str(_built_stand_in.path))
    yield _built_stand_in
    MAPS.clear()
    _built_stand_in.reset()
