"""Kernels for NVIDIA's GPUs that run over numpy (:func:`triton_ext.emulated`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from triton_ext.emulator.launching import EmulatedKernel, Schedule, int_problems
from triton_ext.errors import LaunchError
from triton_ext.host import features, require
from triton_ext.host.sources import compile_kernel

from ..backend.geometry import normalize_dtype
from ..backend.validation import SHARED_MEMORY_BYTES

__all__ = ["Emulated", "emulated"]

#: Compute capabilities whose CTAs have ``SHARED_MEMORY_BYTES``.
_CAPABILITIES: Final = (90, 100, 103)
#: Columns of tensor memory (PTX ISA, "Tensor Memory").
_TENSOR_MEMORY_COLUMNS: Final = 512


class Emulated(EmulatedKernel):
    """A kernel that runs over numpy.

    Args:
        kernel: A ``@gluon.jit`` or ``@triton.jit`` function.
        capability: Compute capability, times ten, that it is compiled for.
        seed: Decides the order in which the partitions of a CTA take turns.
        edit: Changes the TTGIR before it runs; for experiments.
        schedule: When asynchronous operations complete (:func:`triton_ext.emulated`).
        types: Types of parameters that their arguments do not have.

    Raises:
        TypeError: ``kernel`` is not a kernel, or another argument has a wrong type.  At a launch:
            the arguments do not match the kernel's, or an option has a wrong type.
        ValueError: At a launch: an option has an integer value that is not allowed.
        LaunchError: At a launch that the GPU would refuse, or with arguments of another type.
        UnsupportedError: At a launch with an im2col descriptor: the host is older than 3.8.
    """

    OPTIONS: ClassVar = dict.fromkeys(("num_warps", "num_ctas", "num_stages"), False) | {
        "maxnreg": True
    }
    MEMORY: ClassVar = "shared memory"
    # It starts the kernel early, which changes nothing here.
    IGNORED: ClassVar = ("launch_pdl",)

    def __init__(
        self,
        kernel: Any,
        capability: int = 90,
        seed: int = 0,
        edit: Callable[[str], str] | None = None,
        schedule: Schedule = "late",
        types: Mapping[str, str] | None = None,
    ) -> None:
        of = ", the compute capability times ten, such as 90"
        super().__init__(
            kernel,
            problems=lambda: int_problems(capability=(capability, of)),
            types=types,
            edit=edit,
            seed=seed,
            schedule=schedule,
            host_features=features,
            compiler=compile_kernel,
        )
        self.capability = capability

    def _limit(self) -> tuple[int | None, str]:
        limit = SHARED_MEMORY_BYTES if self.capability in _CAPABILITIES else None
        return limit, f"a CTA of sm_{self.capability}"

    def _check_size(self, metadata: Any) -> None:
        super()._check_size(metadata)
        columns = getattr(metadata, "tmem_size", None) or 0
        if columns > _TENSOR_MEMORY_COLUMNS:
            raise LaunchError(
                f"the kernel needs {columns} columns of tensor memory; a CTA of "
                f"sm_{self.capability} has {_TENSOR_MEMORY_COLUMNS}"
            )

    def _target(self) -> tuple[str, int | str, int]:
        return "cuda", self.capability, 32

    def _descriptor_type(self, name: str, desc: Any) -> str:
        if getattr(desc, "geometry", None) is not None:
            # Without it, im2col loads become calls after TTGIR, which the emulator does not run.
            require("im2col-copies")
        block = f"{normalize_dtype(desc.base.dtype)}{list(desc.block_shape)}"
        if not (hasattr(self.kernel, "is_gluon") and self.kernel.is_gluon()):
            return f"tensordesc<{block}>"
        if hasattr(desc, "pixel_box_lower_corner"):
            return f"tensordesc_im2col<{block},input_rank={len(desc.shape)},{desc.layout!r}>"
        return f"tensordesc<{block},{desc.layout!r}>"


def emulated(
    kernel: Any,
    capability: int = 90,
    seed: int = 0,
    edit: Callable[[str], str] | None = None,
    schedule: Schedule = "late",
) -> Emulated:
    """The older name of ``triton_ext.emulated(kernel, "sm_90")``; see :class:`Emulated`."""
    return Emulated(kernel, capability, seed, edit, schedule)
