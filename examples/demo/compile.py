"""Child process: compiles the convolution kernel to a cubin, without a GPU.

Prints one JSON object with what came out.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
import tempfile
import time

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton_ext.ops.conv_fprop import conv_fprop_kernel

# A [128, 64] tile of pixels by a [128, 64] tile of weights, 3x3 filters.
DESCRIPTORS = {
    "x_desc": "tensordesc<fp16[128, 64]>",
    "w_desc": "tensordesc<fp16[128, 1, 64]>",
    "y_desc": "tensordesc<fp16[128, 128]>",
}
CONSTANTS = {
    "y_ptr": None,
    "bias_ptr": None,
    "R": 3,
    "S": 3,
    "CHANNEL_BLOCKS": 2,
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "BLOCK_K": 64,
    "GROUP_SIZE_M": 8,
    "STORE_PARTS": 1,
    "DTYPE": triton.language.float16,
    "DOT_DTYPE": triton.language.float16,
}


def main(capability: int, folder: pathlib.Path) -> None:
    """Compiles for one compute capability (90 or 100) and saves PTX and cubin."""
    signature = {
        name: DESCRIPTORS.get(name, "constexpr" if name in CONSTANTS else "i32")
        for name in conv_fprop_kernel.arg_names
    }
    source = ASTSource(conv_fprop_kernel, signature, constexprs=CONSTANTS)
    start = time.monotonic()
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": 8, "num_stages": 4},
    )
    seconds = time.monotonic() - start
    ptx, cubin = compiled.asm["ptx"], compiled.asm["cubin"]
    (folder / f"conv_fprop.sm_{capability}.ptx").write_text(ptx)
    (folder / f"conv_fprop.sm_{capability}.cubin").write_bytes(cubin)
    instructions = re.findall(r"cp\.async\.bulk\.tensor\S*im2col\S*", ptx)
    result = {
        "capability": capability,
        "seconds": seconds,
        "im2col": len(instructions),
        "instruction": instructions[0].split(".mbarrier")[0] if instructions else "",
        "cubin_bytes": len(cubin),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    # An empty cache, so that the time is that of a compile.
    with tempfile.TemporaryDirectory() as cache, triton.knobs.cache.scope():
        triton.knobs.cache.dir = cache
        main(int(sys.argv[1]), pathlib.Path(sys.argv[2]))
