"""Launches of a compiled kernel that differ in addresses only, in one call of C.

Triton's launcher makes the parameters of a kernel anew at every call: it encodes a tensor map for
each descriptor and converts every argument.  Where a kernel is launched again and again with the
same arguments but for the addresses of its tensors, all of that is done once here, and a launch
writes the addresses into a copy (``prepared_launch.c``).

The safe direction: whatever is not known to be laid out as here goes through Triton's launcher.  A
kernel is prepared only if its signature gives the parameters that its PTX declares, size by size;
a launch is made only if Triton's launcher would do no more than launch (:func:`_has_hooks`), the
driver is the one that was prepared for, and so is the context.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import driver as _drivers
from triton_ext.errors import DriverError, UnsupportedError
from triton_ext.host.tensor_map import MAP_BYTES, map_object_layout

from . import driver
from .descriptors import Im2ColDescriptor

__all__ = ["PreparedLaunch", "parameter_sizes", "prepare_launch"]

_Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]

#: (size, signed) of integers as the launchers of all hosts pass them; i1 differs between hosts.
_INTEGERS: Final = {
    f"{sign}{8 * size}": (size, sign == "i") for size in (1, 2, 4, 8) for sign in "iu"
}
_POINTER_BYTES: Final = 8
# The scratch memories of the kernel and of profiling, whose pointers end every kernel's parameters.
_SCRATCH_POINTERS: Final = 2

# Beyond, launches have an attribute or a call of the driver more.
_MOST_CTAS: Final = 8
_MOST_SHARED_BYTES: Final = 228 * 1024

_ENTRY = re.compile(r"\.entry\s+[\w$.]+\s*\(([^)]*)\)")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z]+(?P<bits>\d+)[^,\[]*(?:\[(?P<count>\d+)\])?"
)

_POINTER, _MAP = 0, 1

#: Type of a descriptor, names and values of its attributes, and the dtype of its tensor, ``None``
#: where the values tell it: all that a map holds but the address.
_Kind = tuple[type, tuple[str, ...], tuple[Any, ...], Any]


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """Launches a kernel with other tensors of the same geometry.

    Attributes:
        host: Triton's driver for which it was prepared.
        device: Number of the device.
        launch: Function of a stream and the tensors; tells whether it launched.
    """

    host: Any
    device: int
    launch: Callable[[int, tuple[Any, ...]], bool]

    def __call__(self, tensors: tuple[Any, ...]) -> bool:
        """Launches on the current stream.

        Args:
            tensors: The kernel's first arguments.  For a descriptor, its tensor will do, of which
                only the address is read: whoever passes it knows its dtype, shape and strides.

        Returns:
            False where nothing was launched, so that it is Triton's launcher's turn.

        Raises:
            RuntimeError: The launch failed; the text is that of Triton's launcher.
        """
        host = _drivers.active
        if host is not self.host or _has_hooks():
            return False
        return self.launch(host.get_current_stream(self.device), tensors)

    def together(
        self, first: _Pick, others: Sequence[tuple[PreparedLaunch, _Pick]]
    ) -> Callable[[tuple[Any, ...]], bool] | None:
        """Returns what launches this kernel and others behind it, of the tensors of one call.

        Args:
            first: Picks this kernel's tensors out of those of a call.
            others: Further kernels, each with what picks its tensors.

        Returns:
            A function like :meth:`__call__`, which may have launched the first ones where it
            returns False; ``None`` for kernels of other devices.
        """
        if any((each.host, each.device) != (self.host, self.device) for each, _ in others):
            return None
        steps = ((self.launch, first), *((each.launch, pick) for each, pick in others))
        host, device = self.host, self.device

        def launch(tensors: tuple[Any, ...]) -> bool:
            if _drivers.active is not host or _has_hooks():
                return False
            stream = host.get_current_stream(device)
            for run, pick in steps:  # noqa: SIM110, a generator costs as much as a launch
                if not run(stream, pick(tensors)):
                    return False
            return True

        return launch


def prepare_launch(
    compiled: Any, grid: Sequence[int], tensors: Sequence[Any], others: Sequence[Any]
) -> PreparedLaunch | None:
    """Prepares further launches of a kernel that was launched on the current device.

    Args:
        compiled: Triton's ``CompiledKernel``.
        grid: Number of programs, in three dimensions.
        tensors: The kernel's first arguments: tensors, descriptors and ``None``, those of tuples
            one by one.  In later launches there are others in their places, which differ in their
            addresses only.
        others: All further arguments, which stay what they are.

    Returns:
        ``None`` where only Triton's launcher can launch it.
    """
    kernel = _Kernel.of(compiled)
    if kernel is None or min(grid) < 1:
        return None
    parameters = _Parameters()
    if not parameters.fill(kernel, tensors, others):
        return None
    if parameters.sizes != parameter_sizes(kernel.ptx):
        return None
    host = _drivers.active
    try:
        prepared = driver.prepare_launch(
            function=compiled.function,
            grid=tuple(grid),
            num_warps=kernel.num_warps,
            num_ctas=kernel.num_ctas,
            shared_bytes=kernel.shared_bytes,
            has_pdl=kernel.has_pdl,
            is_cooperative=kernel.is_cooperative,
            values=bytes(parameters.values),
            offsets=_words(parameters.offsets),
            slots=_words(word for slot in parameters.slots for word in slot),
            kinds=parameters.kinds,
        )
    except (DriverError, ValueError):
        return None
    return PreparedLaunch(host, host.get_current_device(), prepared)


def parameter_sizes(ptx: str) -> list[int] | None:
    """Returns the bytes of each parameter of a module's kernel; ``None`` where that is not clear.

    Args:
        ptx: A module with one kernel.
    """
    entries = _ENTRY.findall(ptx)
    if len(entries) != 1:
        return None
    declared = [each for each in entries[0].split(",") if each.strip()]
    found = [_PARAMETER.match(each.strip()) for each in declared]
    return [
        -1 if match is None else int(match["bits"]) // 8 * int(match["count"] or 1)
        for match in found
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """The parts of a compiled kernel that a launch needs."""

    signature: tuple[Any, ...]
    descriptors: tuple[Any, ...]  # metadata, one for each descriptor
    ptx: str
    num_warps: int
    num_ctas: int
    shared_bytes: int
    has_pdl: bool
    is_cooperative: bool

    @classmethod
    def of(cls, compiled: Any) -> _Kernel | None:
        """Returns it, or ``None`` where Triton's launcher does more than launch."""
        from triton.backends.nvidia.driver import CudaLauncher

        if not isinstance(compiled, CompiledKernel):
            return None
        run, ptx = compiled.run, compiled.asm.get("ptx")
        if type(run) is not CudaLauncher or ptx is None or getattr(run, "gsan_enabled", False):
            return None
        if run.global_scratch_size or run.profile_scratch_size:
            return None
        num_warps, num_ctas, shared_bytes = compiled.packed_metadata
        if num_ctas > _MOST_CTAS or shared_bytes > _MOST_SHARED_BYTES:
            return None
        return cls(
            signature=tuple(compiled.src.signature.values()),
            descriptors=tuple(getattr(compiled.metadata, "tensordesc_meta", None) or ()),
            ptx=ptx,
            num_warps=num_warps,
            num_ctas=num_ctas,
            shared_bytes=shared_bytes,
            has_pdl=bool(run.launch_pdl),
            is_cooperative=bool(run.launch_cooperative_grid),
        )


@dataclass(slots=True)
class _Parameters:
    """The bytes of a kernel's parameters, and where addresses are in them.

    Attributes:
        values: Bytes of all parameters; each begins at a multiple of its size.
        offsets: Where each begins.
        sizes: Size of each parameter in bytes.
        slots: For each tensor that is a parameter: its index, the kind of address, its offset.
        kinds: For each tensor, the :data:`_Kind` of the descriptor that may come in its place, or
            ``None``.
    """

    values: bytearray = field(default_factory=bytearray)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    slots: list[tuple[int, int, int]] = field(default_factory=list)
    kinds: tuple[_Kind | None, ...] = ()

    def fill(self, kernel: _Kernel, tensors: Sequence[Any], others: Sequence[Any]) -> bool:
        """Lays the arguments out; tells whether all of them are known."""
        signature = [
            each
            for kind in kernel.signature[: len(kernel.signature) - len(others)]
            for each in (kind if isinstance(kind, tuple) else (kind,))
        ]
        # A tuple may have been given its first tensors alone.
        if len(signature) < len(tensors) or {*signature[len(tensors) :]} - {"constexpr"}:
            return False
        descriptors = iter(kernel.descriptors)
        kinds: list[_Kind | None] = []
        for index, (kind, tensor) in enumerate(zip(signature, tensors, strict=False)):
            is_descriptor = isinstance(kind, str) and kind.startswith("tensordesc")
            kinds.append(None)
            if is_descriptor:
                if not self._add_descriptor(index, tensor, next(descriptors, None)):
                    return False
                kinds[-1] = _kind_of(tensor)
            elif isinstance(kind, str) and kind.startswith("*"):
                self.slots.append((index, _POINTER, self._add(bytes(_POINTER_BYTES))))
            elif kind != "constexpr":
                return False
        self.kinds = tuple(kinds)
        known = all(
            self._add_value(kind, value)
            for kind, value in zip(
                kernel.signature[len(kernel.signature) - len(others) :], others, strict=True
            )
        )
        for _ in range(_SCRATCH_POINTERS):
            self._add(bytes(_POINTER_BYTES))
        return known and next(descriptors, None) is None

    def _add(self, value: bytes) -> int:
        offset = -(-len(self.values) // len(value)) * len(value)
        self.values += bytes(offset - len(self.values)) + value
        self.offsets.append(offset)
        self.sizes.append(len(value))
        return offset

    def _add_descriptor(self, index: int, tensor: Any, metadata: Any) -> bool:
        """Adds a map as Triton's launcher gets it, shape and strides."""
        if metadata is None:
            return False
        from triton.backends.nvidia.driver import make_tensordesc_arg

        arguments = make_tensordesc_arg(tensor, metadata, ())
        try:
            kind, offset = map_object_layout()
        except UnsupportedError:
            return False
        tensor_map, *sizes = arguments
        if type(tensor_map) is not kind or len(sizes) % 2:
            return False
        encoded = ctypes.string_at(id(tensor_map) + offset, MAP_BYTES)
        self.slots.append((index, _MAP, self._add(encoded)))
        rank = len(sizes) // 2
        shape, strides = sizes[:rank], sizes[rank:]
        return all(self._add_value("i32", size) for size in shape) and all(
            self._add_value("i64", stride) for stride in strides
        )

    def _add_value(self, kind: Any, value: Any) -> bool:
        if isinstance(kind, tuple):
            return (
                isinstance(value, tuple)
                and len(kind) == len(value)
                and all(map(self._add_value, kind, value))
            )
        if kind == "constexpr":
            return True
        if kind not in _INTEGERS or type(value) is not int:
            return False
        size, is_signed = _INTEGERS[kind]
        bits = 8 * size - is_signed
        if not -(1 << bits) * is_signed <= value < 1 << bits:
            return False
        self._add(value.to_bytes(size, "little", signed=is_signed))
        return True


def _kind_of(descriptor: Any) -> _Kind:
    """Returns what another descriptor must have in common with one to be launched in its place."""
    if isinstance(descriptor, Im2ColDescriptor):
        # Stands for the whole geometry.  The two dimensions that Triton sees are fewer.
        return Im2ColDescriptor, ("identity",), (descriptor.identity,), None
    names = tuple(each.name for each in dataclasses.fields(descriptor) if each.name != "base")
    values = [getattr(descriptor, name) for name in names]
    # Copied: descriptors share their lists, which can be changed.
    kept = tuple(list(value) if isinstance(value, list) else value for value in values)
    return type(descriptor), names, kept, descriptor.base.dtype


def _words(numbers: Any) -> bytes:
    values = tuple(numbers)
    return struct.pack(f"={len(values)}I", *values)


def _has_hooks() -> bool:
    """Tells whether launches have hooks, such as a profiler's."""
    runtime = knobs.runtime
    for hook in (runtime.launch_enter_hook, runtime.launch_exit_hook):
        # A chain of hooks, or a single one that somebody put in its place.
        if hook is not None and getattr(hook, "calls", True):
            return True
    return False
