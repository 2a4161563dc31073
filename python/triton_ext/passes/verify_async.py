"""``triton-ext-verify-async``: proves that asynchronous operations are waited for, or refutes it.

One name for both vendors:

* AMD, and NVIDIA's ``cp.async`` where a kernel has neither mbarriers nor products of a warp group:
  what ``triton-ext-verify-async-waits`` does.
* NVIDIA's mbarriers, TMA unit, WGMMA and partitions: every interleaving is covered
  (:mod:`triton_ext.analysis.interleavings`).  A kernel is *proved*; or *refuted*, which is an error
  with a trace; or *not decided*, which is a warning that names the operation that could not be
  followed.

Output: with ``report=all``, a remark for each kernel that is proved.  ``undecided=error`` makes an
error of a kernel that is not decided, or that is proved only under assumptions about its loops.

Safe direction: what is proved is right under the assumptions of docs/async-waits.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from triton_ext import backends
from triton_ext.ir import Module
from triton_ext.passes.base import Pass
from triton_ext.passes.context import PassContext

__all__ = ["VerifyAsync"]

#: Operations of kernels that the other verifier does not cover.
_NVIDIA: Final = (
    *("ttng.init_barrier", "ttng.warp_group_dot", "ttng.async_tma_copy_local_to_global"),
    *("ttng.async_tma_reduce", "ttng.async_tma_scatter"),
)


@dataclass(frozen=True, slots=True)
class VerifyAsync(Pass):
    """Checks the asynchronous operations of a kernel.

    Attributes:
        report: ``errors``, or ``all`` for remarks as well.
        undecided: What a kernel is that is neither proved for all arguments nor refuted: a
            ``warning`` or an ``error``.
    """

    name: ClassVar[str] = "triton-ext-verify-async"

    report: Literal["errors", "all"] = "errors"
    undecided: Literal["warning", "error"] = "warning"

    def run(self, module: Module, context: PassContext) -> None:
        """Checks ``module``.

        Raises:
            PassError: A kernel is refuted; or it is not proved, and that is an error.
        """
        target = module.op.attributes.get("ttg.target", "").strip('"')
        if target.startswith("cuda:") and any(op.name in _NVIDIA for op in module.walk()):
            verify = backends.load("nvidia", "verify-async")
            verify(module, context, report=self.report, undecided=self.undecided)
        else:
            backends.load("amd", "verify-async-waits")(report=self.report).run(module, context)
