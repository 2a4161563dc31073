"""Small TTGIR kernels of the emulator's tests."""

from __future__ import annotations

import numpy as np
from triton_ext.emulator import Program

__all__ = ["elementwise", "kernel", "tdm_kernel"]

_POINTER = {"float16": "f16", "float32": "f32", "float64": "f64"} | {
    f"int{n}": f"i{n}" for n in (8, 16, 32, 64)
}

_HEAD = """#b = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>
#r = #ttg.blocked<{sizePerThread = [8, 1], threadsPerWarp = [1, 32], warpsPerCTA = [1, 4], order = [1, 0]}>
#s = #ttg.padded_shared<[32:+4] {order = [1, 0], shape = [8, 32]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "hip:gfx1250", "ttg.threads-per-warp" = 32 : i32} {
"""  # noqa: E501 - TTGIR


def kernel(body, parameters=""):
    """A kernel of a few lines."""
    lines = "".join(f"    {line.strip()}\n" for line in body.strip().splitlines())
    return f"{_HEAD}  tt.func public @kernel({parameters}) {{\n{lines}    tt.return\n  }}\n}}\n"


def elementwise(operation, inputs, result):
    """Runs ``operation`` on arrays of one length.

    Args:
        operation: Text with ``{0}``, ``{1}`` for the operands and ``T`` for the tensor type of the
            first one, ``R`` for that of the result.
        inputs: Arrays; a bool array is kept as i8 and compared with 0.
        result: The array that takes the result; a bool one is i8.
    """
    size = len(inputs[0])
    lines = [f"%range = tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{size}xi32>"]
    arrays, parameters, operands, first = [], [], [], ""
    for number, array in enumerate((*inputs, result)):
        is_bool = array.dtype == np.bool_
        element = "i8" if is_bool else _POINTER[str(array.dtype)]
        parameters.append(f"%p{number}: !tt.ptr<{element}>")
        arrays.append(array.view(np.int8) if is_bool else array)
        pointers = f"tensor<{size}x!tt.ptr<{element}>>"
        lines.append(f"%s{number} = tt.splat %p{number} : !tt.ptr<{element}> -> {pointers}")
        lines.append(f"%a{number} = tt.addptr %s{number}, %range : {pointers}, tensor<{size}xi32>")
        if array is result:
            break
        lines.append(f"%x{number} = tt.load %a{number} : {pointers}")
        operands.append(f"%x{number}")
        if is_bool:
            lines.append(f"%z{number} = arith.constant dense<0> : tensor<{size}xi8>")
            lines.append(f"%c{number} = arith.cmpi ne, %x{number}, %z{number} : tensor<{size}xi8>")
            operands[-1] = f"%c{number}"
            element = "i1"
        first = first or f"tensor<{size}x{element}>"
    kind = "i1" if result.dtype == np.bool_ else _POINTER[str(result.dtype)]
    last = f"tensor<{size}x{kind}>"
    text = operation.format(*operands).replace("T", first).replace("R", last)
    lines.append(f"%r = {text}")
    stored, pointers = "%r", f"tensor<{size}x!tt.ptr<{kind}>>"
    if kind == "i1":
        lines.append(f"%w = arith.extui %r : {last} to tensor<{size}xi8>")
        stored, pointers = "%w", f"tensor<{size}x!tt.ptr<i8>>"
    lines.append(f"tt.store %a{len(inputs)}, {stored} : {pointers}")
    Program(kernel("\n".join(lines), ", ".join(parameters))).run((1,), arrays)
    return result


_DESC = "!tt.tensordesc<8x32xf32, #s>"
_BUFFER = "!ttg.memdesc<8x32xf32, #s, #smem, mutable>"

#: One line each; ``$load a`` in the body of :func:`tdm_kernel` stands for ``load`` with ``a``.
_MACROS = {
    "load": f"%t{{n}} = amdg.async_tdm_copy_global_to_local %in into %{{0}} : {_DESC} -> {_BUFFER}",
    "off": (
        f"%t{{n}} = amdg.async_tdm_copy_global_to_local %none into %{{0}} : {_DESC} -> {_BUFFER}"
    ),
    "gather": (
        "%t{n} = amdg.async_tdm_gather %in[%rows] to %{0} : "
        f"tensor<8xi32, #ttg.slice<{{{{dim = 1, parent = #r}}}}>>, {_BUFFER} -> {_DESC}"
    ),
    "scatter": (
        "%t{n} = amdg.async_tdm_scatter %out[%rows] from %{0} : "
        f"tensor<8xi32, #ttg.slice<{{{{dim = 1, parent = #r}}}}>>, {_BUFFER} -> {_DESC}"
    ),
    "store": f"amdg.async_tdm_copy_local_to_global %out from %{{0}} : {_BUFFER} -> {_DESC}",
    "copy": (
        "%t{n} = ttg.async_copy_global_to_local %xat, %{0} : "
        "tensor<8x32x!tt.ptr<f32>, #b> -> <8x32xf32, #s, #smem, mutable>"
    ),
    "copyback": (
        f"%t{{n}} = amdg.async_copy_local_to_global %{{0}}, %yat : {_BUFFER} -> "
        "tensor<8x32x!tt.ptr<f32>, #b>"
    ),
    "commit": "%t{n} = ttg.async_commit_group",
    "groups": "%t{n} = ttg.async_wait {{num = {0} : i32}}",
    "wait": "%t{n} = amdg.async_tdm_wait  {{num = {0} : i32}}",
    "count": "%t{n} = amdg.async_tdm_intrinsic_wait  {{count = {0} : i32}}",
    "read": f"%{{0}} = ttg.local_load %{{1}} : {_BUFFER} -> tensor<8x32xf32, #b>",
    "write": f"ttg.local_store %{{1}}, %{{0}} : tensor<8x32xf32, #b> -> {_BUFFER}",
    "alloc": f"%{{0}} = ttg.local_alloc : () -> {_BUFFER}",
    "keep": "tt.store %at, %{0} : tensor<8x32x!tt.ptr<f32>, #b>",
}


def tdm_kernel(body, rows=range(8)):
    """A kernel over an input, an output and a place for what is read; see ``_MACROS``.

    The parameters are the input [H, W], the output [H, W], [8, 32] for what ``keep`` stores, the
    row numbers, H and W.
    """
    lines = f"""
        %one = arith.constant 1 : i64
        %zero = arith.constant 0 : i32
        %wide = arith.extsi %width : i32 to i64
        %in = tt.make_tensor_descriptor %x, [%height, %width], [%wide, %one] : <f32>, <8x32xf32, #s>
        %out = tt.make_tensor_descriptor %y, [%height, %width], [%wide, %one] : <f32>, <8x32xf32, #s>
        %none = amdg.update_tensor_descriptor %in pred = %zero : {_DESC}
        %r0 = tt.make_range {{end = 8 : i32, start = 0 : i32}} : tensor<8xi32, #ttg.slice<{{dim = 1, parent = #r}}>>
        %r1 = tt.splat %index : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>, #ttg.slice<{{dim = 1, parent = #r}}>>
        %r2 = tt.addptr %r1, %r0 : tensor<8x!tt.ptr<i32>, #ttg.slice<{{dim = 1, parent = #r}}>>, tensor<8xi32, #ttg.slice<{{dim = 1, parent = #r}}>>
        %rows = tt.load %r2 : tensor<8x!tt.ptr<i32>, #ttg.slice<{{dim = 1, parent = #r}}>>
        %k0 = tt.make_range {{end = 8 : i32, start = 0 : i32}} : tensor<8xi32, #ttg.slice<{{dim = 1, parent = #b}}>>
        %k1 = tt.expand_dims %k0 {{axis = 1 : i32}} : tensor<8xi32, #ttg.slice<{{dim = 1, parent = #b}}>> -> tensor<8x1xi32, #b>
        %c32 = arith.constant dense<32> : tensor<8x1xi32, #b>
        %k2 = arith.muli %k1, %c32 : tensor<8x1xi32, #b>
        %k3 = tt.broadcast %k2 : tensor<8x1xi32, #b> -> tensor<8x32xi32, #b>
        %l0 = tt.make_range {{end = 32 : i32, start = 0 : i32}} : tensor<32xi32, #ttg.slice<{{dim = 0, parent = #b}}>>
        %l1 = tt.expand_dims %l0 {{axis = 0 : i32}} : tensor<32xi32, #ttg.slice<{{dim = 0, parent = #b}}>> -> tensor<1x32xi32, #b>
        %l2 = tt.broadcast %l1 : tensor<1x32xi32, #b> -> tensor<8x32xi32, #b>
        %o = arith.addi %k3, %l2 : tensor<8x32xi32, #b>
        %base = tt.splat %z : !tt.ptr<f32> -> tensor<8x32x!tt.ptr<f32>, #b>
        %at = tt.addptr %base, %o : tensor<8x32x!tt.ptr<f32>, #b>, tensor<8x32xi32, #b>
        %xs = tt.splat %x : !tt.ptr<f32> -> tensor<8x32x!tt.ptr<f32>, #b>
        %xat = tt.addptr %xs, %o : tensor<8x32x!tt.ptr<f32>, #b>, tensor<8x32xi32, #b>
        %ys = tt.splat %y : !tt.ptr<f32> -> tensor<8x32x!tt.ptr<f32>, #b>
        %yat = tt.addptr %ys, %o : tensor<8x32x!tt.ptr<f32>, #b>, tensor<8x32xi32, #b>
    """  # noqa: E501 - TTGIR
    for number, line in enumerate(body.strip().splitlines()):
        line = line.strip()
        if line.startswith("$"):
            name, *words = line[1:].split()
            line = _MACROS[name].format(*words, n=f"t{number}")
        lines += f"{line}\n"
    return kernel(
        lines,
        "%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %z: !tt.ptr<f32>, %index: !tt.ptr<i32>, "
        "%height: i32, %width: i32",
    )
