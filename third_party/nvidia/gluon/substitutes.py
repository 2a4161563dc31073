"""im2col descriptors for Gluon on hosts that have none (3.6, 3.7): their class and their type.

Triton there knows tiled descriptors only.  An im2col one is a subclass to it, on the host and in a
kernel; what tells them apart in a signature is the layout (``spelling.py``).

In TTGIR the descriptor has the tiled type of its block, and ``async_load_im2col`` leaves a tiled
copy of markers (``triton_ext.markers``), as ``load_im2col`` does in ``@triton.jit`` kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from triton.experimental.gluon.language._layouts import NVMMASharedLayout
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = [
    "Im2ColSharedLayout",
    "TensorDescriptorIm2Col",
    "tensor_descriptor_im2col",
    "tensor_descriptor_im2col_type",
]


# ---- On the host -------------------------------------------------------------------------------


class Im2ColSharedLayout(NVMMASharedLayout):  # type: ignore[misc]  # triton ships no types
    """A layout that says of which rank the tensor is; equal to the plain one of the same fields."""

    @classmethod
    def of(cls, layout: Any, rank: int) -> Any:
        """Returns the layout of the descriptor of a tensor of ``rank``."""
        if isinstance(layout, cls):
            if layout.input_rank == rank:
                return layout
            layout = layout.plain
        made = cls(**vars(layout))
        object.__setattr__(made, "input_rank", rank)
        return made

    @property
    def plain(self) -> Any:
        """The layout itself."""
        fields = {name: value for name, value in vars(self).items() if name != "input_rank"}
        return NVMMASharedLayout(**fields)

    def __repr__(self) -> str:
        return f"Im2ColSharedLayout(input_rank={self.input_rank},{self.plain!r})"

    def __eq__(self, other: object) -> bool:
        theirs = other.plain if isinstance(other, Im2ColSharedLayout) else other
        return bool(self.plain == theirs)

    def __hash__(self) -> int:
        return hash(self.plain)


@dataclass
class TensorDescriptorIm2Col(TensorDescriptor):  # type: ignore[misc]  # triton ships no types
    """Has the name and fields of the class of hosts from 3.8; ``gluon.descriptors`` builds it."""

    round_f32_to_tf32: bool = False
    element_strides: list[int] | None = None
    pixel_box_lower_corner: list[int] | None = None
    pixel_box_upper_corner: list[int] | None = None

    @property
    def mode(self) -> str:
        """How the tensor is read."""
        return "im2col"


# ---- In a kernel -------------------------------------------------------------------------------


@dataclass(eq=True)
class tensor_descriptor_im2col_type(tma.tensor_descriptor_type):  # type: ignore[misc]
    """The type of a kernel argument; sizes and strides are the tensor's, one per dimension."""

    def __str__(self) -> str:
        return f"tensor_descriptor_im2col<{self.block_type}, {self.layout}>"

    def _unflatten_ir(self, handles: list[Any], cursor: int) -> tuple[Any, int]:
        handle = handles[cursor]
        shape, cursor = self.shape_type._unflatten_ir(handles, cursor + 1)
        strides, cursor = self.strides_type._unflatten_ir(handles, cursor)
        return tensor_descriptor_im2col(handle, shape, strides, self), cursor

    def mangle(self) -> str:
        return f"TDI{len(self.shape_type.types)}{super().mangle()}"


class tensor_descriptor_im2col(tma.tensor_descriptor):  # type: ignore[misc]
    """A kernel argument."""

    def __init__(self, handle: Any, shape: Any, strides: Any, type_: Any) -> None:
        self.map = handle
        self.shape = shape
        self.strides = strides
        self.type = type_

    @property
    def handle(self) -> NoReturn:
        """Refuses Triton's own operations, which would read the tensor in tiles."""
        raise TypeError(
            "this im2col descriptor was passed to a tiled operation; read it with "
            "triton_ext.gluon.nvidia.async_load_im2col"
        )

    def _flatten_ir(self, handles: list[Any]) -> None:
        handles.append(self.map)
        self.shape._flatten_ir(handles)
        self.strides._flatten_ir(handles)

    @property
    def nbytes_per_cta(self) -> int:
        """Bytes that a barrier of one CTA has to expect of a load."""
        splits = sum(any(basis) for basis in self.layout.cga_layout or ())
        bits = self.dtype.primitive_bitwidth
        for size in self.block_shape:
            bits *= size
        return int(bits // 8 >> splits)
