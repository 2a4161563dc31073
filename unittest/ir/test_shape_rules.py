"""Shapes and element types that operations relate, which every host checks."""

from __future__ import annotations

import pytest
from triton_ext.errors import VerifyError
from triton_ext.ir import parse, rules

BUFFER = "!ttg.memdesc<16x16xf32, #s, #smem, mutable>"
HEADER = """\
#b = #ttg.blocked<{sizePerThread=[1,1],threadsPerWarp=[4,8],warpsPerCTA=[4,1],order=[1,0]}>
#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"} {
  tt.func @f(%line: tensor<16xf32>, %pair: tensor<16x2xf32>, %x: tensor<16x8xf32>,
             %column: tensor<16x1xf32>, %b: tensor<16x16xf32, #b>, %buffer: BUFFER, %i: i32,
             %small: tensor<4xi16>) {
    OPERATION
    tt.return
  }
}
""".replace("BUFFER", BUFFER)

#: Operations, and what the error expects.
WRONG = {
    "%0 = ttg.convert_layout %b : tensor<16x16xf32, #b> -> tensor<32x16xf32, #b>": "the same shape",
    "%0 = ttg.convert_layout %b : tensor<16x16xf32, #b> -> tensor<16x16xf16, #b>": "the same shape",
    "%0 = tt.broadcast %line : tensor<16xf32> -> tensor<16x16xf32>": "the same sizes",
    "%0 = tt.broadcast %pair : tensor<16x2xf32> -> tensor<16x16xf32>": "the same sizes",
    "%0 = tt.broadcast %column : tensor<16x1xf32> -> tensor<16x8xf16>": "the same element type",
    "%0 = tt.expand_dims %line {axis = 0 : i32} : tensor<16xf32> -> tensor<16x1xf32>": "one more",
    "%0 = tt.expand_dims %line {axis = 5 : i32} : tensor<16xf32> -> tensor<16x1xf32>": "one more",
    "%0 = tt.trans %x {order = array<i32: 1, 0>} : tensor<16x8xf32> -> tensor<16x8xf32>": "sizes",
    "%0 = tt.trans %x {order = array<i32: 0, 0>} : tensor<16x8xf32> -> tensor<16x8xf32>": "order",
    "%0 = tt.trans %x {order = array<i32: 1, 0>} : tensor<16x8xf32> -> tensor<8x16xf16>": "same",
    "%0 = tt.reshape %x : tensor<16x8xf32> -> tensor<16xf32>": "as many elements",
    "%0 = tt.reshape %x : tensor<16x8xf32> -> tensor<128xf16>": "the same element type",
    "%0 = tt.join %x, %x : tensor<16x8xf32> -> tensor<16x8x4xf32>": "one more dimension of 2",
    "%0 = tt.join %x, %x : tensor<16x8xf32> -> tensor<16x8x2xf16>": "the same element type",
    "%0, %1 = tt.split %x : tensor<16x8xf32> -> tensor<16xf32>": "the shape without its last",
    "%0, %1 = tt.split %pair : tensor<16x2xf32> -> tensor<8xf32>": "the shape without its last",
    "%0, %1 = tt.split %pair : tensor<16x2xf32> -> tensor<16xf16>": "the same element type",
    "%0 = tt.bitcast %x : tensor<16x8xf32> -> tensor<16x4xi32>": "the same shape",
    "%0 = arith.extsi %small : tensor<4xi16> to tensor<8xi32>": "the same shape",
    f"%0 = ttg.local_load %buffer : {BUFFER} -> tensor<16x8xf32, #b>": "the same shape",
    f"%0 = ttg.local_load %buffer : {BUFFER} -> tensor<16x16xf16, #b>": "the same shape",
    f"%0 = ttg.local_alloc %b : (tensor<16x16xf32, #b>) -> {BUFFER.replace('f32', 'f16')}": "same",
    "%0 = arith.muli %i, %i": "expected types at the end of 'arith.muli'",
}
RIGHT = (
    "%0 = ttg.convert_layout %b : tensor<16x16xf32, #b> -> tensor<16x16xf32, "
    "#ttg.blocked<{sizePerThread=[1,4],threadsPerWarp=[8,4],warpsPerCTA=[4,1],order=[1,0]}>>",
    "%0 = tt.broadcast %column : tensor<16x1xf32> -> tensor<16x8xf32>",
    "%0 = tt.expand_dims %line {axis = 1 : i32} : tensor<16xf32> -> tensor<16x1xf32>",
    "%0 = tt.trans %x {order = array<i32: 1, 0>} : tensor<16x8xf32> -> tensor<8x16xf32>",
    "%0 = tt.reshape %x : tensor<16x8xf32> -> tensor<4x32xf32>",
    "%0 = tt.join %x, %x : tensor<16x8xf32> -> tensor<16x8x2xf32>",
    "%0, %1 = tt.split %pair : tensor<16x2xf32> -> tensor<16xf32>",
    "%0 = tt.bitcast %x : tensor<16x8xf32> -> tensor<16x8xi32>",
    "%0 = arith.extsi %small : tensor<4xi16> to tensor<4xi32>",
    f"%0 = ttg.local_load %buffer : {BUFFER} -> tensor<16x16xf32, #b>",
    f"%0 = ttg.local_alloc %b : (tensor<16x16xf32, #b>) -> {BUFFER}",
)


@pytest.mark.parametrize("operation", WRONG)
def test_wrong(operation):
    module = parse(HEADER.replace("OPERATION", operation))
    with pytest.raises(VerifyError) as caught:
        module.verify()
    assert caught.value.line == 8
    assert WRONG[operation] in caught.value.message


@pytest.mark.parametrize("operation", RIGHT)
def test_right(operation):
    parse(HEADER.replace("OPERATION", operation)).verify()


def test_the_host_says_the_same():
    pytest.importorskip("triton")
    from triton_ext.host.process import HostProcess, find_library

    with HostProcess(find_library()) as host:
        for operation in RIGHT:
            found = host.run(HEADER.replace("OPERATION", operation), "t.mlir")
            assert found.text is not None, (operation, found.diagnostics)
        for operation in WRONG:
            # Some of them end the process of some hosts, which is a refusal too.
            assert host.run(HEADER.replace("OPERATION", operation), "t.mlir").text is None, (
                operation
            )


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_chain_of_aliases_that_is_too_long_is_followed_once(monkeypatch, is_reversed):
    lines = [f"#a{i} = #ttg.slice<{{dim = 0, parent = #a{i + 1}}}>" for i in range(4000)]
    if is_reversed:
        lines.reverse()
    searched = []

    class Searching:
        sub = rules._ALIAS.sub

        def findall(self, text, pattern=rules._ALIAS):
            searched.append(text)
            return pattern.findall(text)

    monkeypatch.setattr(rules, "_ALIAS", Searching())
    parse("\n".join(lines) + "\nmodule {\n}\n").verify()
    assert len(searched) <= 4 * len(lines)
