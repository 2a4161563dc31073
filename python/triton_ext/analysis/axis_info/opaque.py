"""Names of operations whose results no host's axis analysis knows anything about.

Claims that depend only on such results are complete.  An operation that is neither here nor has a
rule leaves a gap (property 6).
"""

from __future__ import annotations

__all__ = ["is_opaque"]

#: Dialects without any integer or pointer arithmetic that a host looks into.
_DIALECTS = frozenset({"gpu", "llvm", "math", "nvg", "nvgpu", "nvvm", "nvws", "rocdl", "ttng"})
_ARITH = """
    addf addui_extended bitcast ceildivsi ceildivui cmpf convertf divf extf floordivsi fptosi
    fptoui maximumf maxnumf minimumf minnumf mulf mulsi_extended mului_extended negf remf
    scaling_extf scaling_truncf sitofp subf truncf uitofp
"""
_TT = """
    approx_divf atomic_cas atomic_load atomic_poll atomic_rmw call cat clampf
    descriptor_gather descriptor_load descriptor_reduce dot dot_scaled elementwise_inline_asm
    experimental_descriptor_load extern_elementwise fp_to_fp gather get_num_programs
    get_program_id histogram make_tensor_descriptor make_tensor_ptr map_elementwise mulhiui
    precise_divf precise_sqrt reduce scan unsplat
"""
_TTG = """
    async_commit_group async_copy_global_to_local async_wait fp4_to_fp global_scratch_alloc
    inline_asm local_alloc local_atomic_scatter_rmw local_gather local_load memdesc_index
    memdesc_reinterpret memdesc_reshape memdesc_subslice memdesc_trans remote_local_alloc
    upcast_fp4 warp_id
"""
_NAMES = frozenset(
    f"{dialect}.{name}"
    for dialect, names in (("arith", _ARITH), ("tt", _TT), ("ttg", _TTG))
    for name in names.split()
)


def is_opaque(name: str) -> bool:
    """Returns whether no host knows anything about the results of an operation."""
    return name in _NAMES or name.partition(".")[0] in _DIALECTS
