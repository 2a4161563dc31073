"""The widths of reads and writes of LDS are those of the assembly; needs no GPU."""

from __future__ import annotations

import os
import random
import re
from collections import Counter

import pytest

pytest.importorskip("triton", minversion="3.9")
import bank_kernels
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton_ext.analysis.bank_conflicts import Access
from triton_ext.ir import parse
from triton_ext.ir.aliases import AliasTable

COUNT = 100 if os.environ.get("TRITON_EXT_NIGHTLY") == "1" else 6
LANES = {"gfx950": 64, "gfx1250": 32}
_INSTRUCTION = re.compile(r"^\s*(ds_(read|write|load|store)\w*)\s", re.MULTILINE)
_KINDS = {"ttg.local_load": ("read", "load"), "ttg.local_store": ("write", "store")}
# What is no plain read, and so not modelled.
_TRANSPOSES = re.compile(r"_tr\d*_")


def split(source, total):
    one = 1 << source.randrange(total.bit_length())
    return [one, total // one]


def compiled(seed, arch):
    """A kernel with layouts drawn at random, and the bits of its elements."""
    source = random.Random(seed)
    bits = source.choice([8, 16, 32, 64])
    rows, columns = [1, 0], [0, 1]
    tile, lanes = split(source, source.choice([1, 2, 4, 8])), split(source, LANES[arch])
    registers = gl.BlockedLayout(tile, lanes, split(source, 4), source.choice([rows, columns]))
    shape = (source.choice([16, 32, 64]), source.choice([32, 64]))
    order = source.choice([rows, columns])
    if source.random() < 0.4:
        pairs = [[source.choice([32, 64, 128]), max(source.choice([2, 4, 8]), 128 // bits)]]
        shared = gl.PaddedSharedLayout.with_identity_for(pairs, list(shape), order)
    else:
        # Swizzled without mixing registers: that one instruction may be joined from halves of two.
        shared = gl.SwizzledSharedLayout(8, source.choice([1, 2]), source.choice([1, 2, 4]), order)
    constants = {"SHAPE": shape, "SHARED": shared, "REGISTERS": registers}
    kernel = bank_kernels.through_lds
    names = kernel.arg_names
    signature = dict.fromkeys(("x", "y"), f"*i{bits}") | dict.fromkeys(constants, "constexpr")
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(2)}
    made = GluonASTSource(kernel, signature, values, aligned)
    target = GPUTarget("hip", arch, LANES[arch])
    return triton.compile(made, target=target, options={"num_warps": 4}), bits


def emitted(assembly, kind):
    """Reads (writes) of a wave by their bits; those of two places count twice."""
    found = Counter()
    for match in _INSTRUCTION.finditer(assembly):
        if match[2] in _KINDS[kind]:
            times = 2 if re.search(r"(read|write|load|store)(2|_2addr)", match[1]) else 1
            found[int(re.search(r"_[bui](\d+)", match[1])[1])] += times
    return found


@pytest.mark.parametrize("arch", LANES)
@pytest.mark.parametrize("seed", range(COUNT))
def test_widths(seed, arch, fresh_triton_cache):
    kernel, bits = compiled(seed, arch)
    module = parse(kernel.asm["ttgir"])
    table = AliasTable.of(module.aliases)
    assembly = kernel.asm["amdgcn"]
    for op in module.walk():
        if op.name not in _KINDS:
            continue
        tensor, buffer = (*op.results, *op.operands)[:2]
        values, memory = table.type(tensor.type), table.type(buffer.type)
        access = Access.of(values.encoding, memory.encoding, values.static_shape, bits)
        found = emitted(assembly, op.name)
        if op.name == "ttg.local_load" and _TRANSPOSES.search(assembly):
            assert access.instruction_bits <= 16
            continue
        assert found == {access.instruction_bits: len(access.first_registers())}, op.name
