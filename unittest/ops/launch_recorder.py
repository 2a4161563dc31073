"""What reaches ``cuLaunchKernelEx`` of the stand-in for libcuda, byte by byte."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Launch", "Recorder"]

_ATTRIBUTE_BYTES = 72


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_uint64),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


_Listener = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch.

    Attributes:
        grid: Number of CTAs.
        block: Number of threads.
        shared_bytes: Dynamic shared memory.
        stream: Its handle.
        function: Its handle.
        attributes: As they lie in memory.
        parameters: The kernel's, as they lie in memory.
    """

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    function: int
    attributes: tuple[bytes, ...]
    parameters: tuple[bytes, ...]


class Recorder:
    """Records launches in a process whose libcuda is the stand-in."""

    def __init__(self) -> None:
        folder = os.environ["TRITON_LIBCUDA_PATH"]
        self.library = ctypes.CDLL(os.path.join(folder, "libcuda.so.1"))
        self.library.fake_libcuda_state.restype = ctypes.POINTER(ctypes.c_int)
        self._sizes: Callable[[int], Sequence[int]] = lambda _: ()
        self._launches: list[Launch] = []
        self._listener = _Listener(self._listen)
        self.library.fake_launcher_listen(self._listener)

    def record(self, sizes: Sequence[int], launch: Callable[[], Any]) -> list[Launch]:
        """Returns the launches of a kernel with parameters of these many bytes."""
        return self._record(lambda _: sizes, launch)

    def record_all(self, sizes: Sequence[Sequence[int]], launch: Callable[[], Any]) -> list[Launch]:
        """Returns launches of several kernels; ``sizes`` are those of each launch's parameters."""
        return self._record(lambda index: sizes[index], launch)

    def _record(
        self, sizes: Callable[[int], Sequence[int]], launch: Callable[[], Any]
    ) -> list[Launch]:
        self._sizes, self._launches = sizes, []
        try:
            launch()
        finally:
            self._sizes = lambda _: ()
        return self._launches

    def _listen(self, config: Any, function: int, arguments: Any) -> None:
        it = config.contents
        sizes = self._sizes(len(self._launches))
        at = it.attributes
        self._launches.append(
            Launch(
                tuple(it.grid),
                tuple(it.block),
                it.shared_bytes,
                it.stream,
                function,
                tuple(
                    ctypes.string_at(at + i * _ATTRIBUTE_BYTES, _ATTRIBUTE_BYTES)
                    for i in range(it.num_attributes)
                ),
                tuple(ctypes.string_at(arguments[i], n) for i, n in enumerate(sizes)),
            )
        )
