"""Numbers of results and operands that the name of an operation implies.

MLIR reads operations without names for their results; those have as many as listed here, or as
types after their arrow.
"""

from __future__ import annotations

__all__ = [
    "BINARY",
    "CASTS",
    "COMPARED",
    "FEWEST_OPERANDS",
    "ONE_RESULT",
    "OPERANDS",
    "UNARY",
    "WITHOUT_RESULTS",
]


def _names(dialect: str, words: str) -> frozenset[str]:
    return frozenset(f"{dialect}.{word}" for word in words.split())


BINARY = _names("arith", "addf addi andi ceildivsi ceildivui divf divsi divui floordivsi maximumf")
BINARY |= _names("arith", "maxnumf maxsi maxui minimumf minnumf minsi minui mulf muli ori remf")
BINARY |= _names("arith", "remsi remui shli shrsi shrui subf subi xori")
UNARY = _names("math", "absf absi ceil cos erf exp exp2 floor fma log log2 rsqrt sin sqrt")
UNARY |= {"arith.negf"}
COMPARED = frozenset({"arith.cmpf", "arith.cmpi"})

CASTS = _names("arith", "bitcast extf extsi extui fptosi fptoui index_cast index_castui sitofp")
CASTS |= _names("arith", "truncf trunci uitofp")

#: Operations with a fixed number of operands on every release.
OPERANDS = dict.fromkeys(BINARY | COMPARED, 2) | dict.fromkeys(UNARY | CASTS, 1)
OPERANDS |= dict.fromkeys(_names("tt", "addptr cat gather join mulhiui"), 2)
OPERANDS |= dict.fromkeys(
    _names("tt", "bitcast broadcast expand_dims int_to_ptr ptr_to_int reshape splat split trans"), 1
)
OPERANDS |= dict.fromkeys(
    _names("ttg", "convert_layout local_dealloc memdesc_reinterpret memdesc_reshape")
    | _names("ttg", "memdesc_subslice memdesc_trans")
    | _names("ttng", "init_barrier inval_barrier tmem_subslice"),
    1,
)
OPERANDS |= dict.fromkeys(_names("arith", "addui_extended mulsi_extended mului_extended"), 2)
OPERANDS |= dict.fromkeys({"ttg.local_store", "ttg.memdesc_index"}, 2)
OPERANDS |= dict.fromkeys({"amdg.extract_slice", "gluon.set_auto_layout", "tt.unsplat"}, 1)
OPERANDS |= dict.fromkeys({"arith.select", "math.fma", "tt.clampf", "tt.dot"}, 3)
OPERANDS["scf.if"] = 1

#: Operations with a minimum number of operands.
FEWEST_OPERANDS = dict.fromkeys(
    {"cf.cond_br", "cf.switch", "scf.condition", "tt.histogram", "tt.load"}
    | {"tt.reduce", "tt.scan"}
    | {"ttg.local_load", "ttng.tmem_load"},
    1,
)
FEWEST_OPERANDS |= {"scf.for": 3, "tt.store": 2}

#: Operations with one result, named in the text or not.
ONE_RESULT = BINARY | UNARY | COMPARED | CASTS | {"arith.constant", "arith.select"}
ONE_RESULT |= _names(
    "tt", "addptr atomic_cas atomic_load atomic_poll atomic_rmw bitcast broadcast cat clampf dot"
)
ONE_RESULT |= _names("tt", "dot_scaled expand_dims")
ONE_RESULT |= _names(
    "tt", "fp_to_fp gather get_num_programs get_program_id histogram int_to_ptr join load"
)
ONE_RESULT |= _names(
    "tt", "make_range make_tensor_descriptor mulhiui ptr_to_int reshape splat trans"
)
ONE_RESULT |= _names(
    "ttg", "async_commit_group convert_layout local_alloc local_load memdesc_index"
)
ONE_RESULT |= _names("ttg", "local_atomic_scatter_rmw memdesc_trans")
ONE_RESULT |= _names("tti", "experimental_gsan_atomic_cas experimental_gsan_atomic_rmw")
ONE_RESULT |= {"amdg.buffer_atomic_cas", "amdg.buffer_atomic_rmw", "gluon.set_auto_layout"}

#: Operations with an arrow in their text but no result, or only a token.
WITHOUT_RESULTS = frozenset(
    {"builtin.module", "func.func", "tt.func", "llvm.func", "gpu.module", "gpu.func"}
    | {"ttg.local_store", "ttng.async_shared_store", "ttng.async_tma_copy_global_to_local"}
    | {"amdg.buffer_store", "amdg.buffer_load_to_local", "ttg.async_copy_global_to_local"}
    | {"amdg.async_copy_local_to_global", "ttng.tmem_store"}
    | {"amdg.async_tdm_copy_global_to_local", "amdg.async_tdm_copy_local_to_global"}
    | {"amdg.async_tdm_fused_copy_global_to_local"}
    | {"amdg.async_tdm_gather", "amdg.async_tdm_scatter"}
)
