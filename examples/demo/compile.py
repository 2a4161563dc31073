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

import torch
import triton
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.device import SMEM_BYTES, Device
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.tuning import parse_shape
from triton_ext.ops.tuning.measure import compile_kernels, target_only

# A [128, 64] tile of pixels by a [128, 64] tile of weights.
CONFIG = ConvConfig(block_m=128, block_n=128, num_stages=4, num_warps=8)
CASE = Case(direction="fprop", problem=parse_shape("8x128x56x56_128_k3x3"), dtype=torch.float16)


def main(capability: int, folder: pathlib.Path) -> None:
    """Compiles for one compute capability (90 or 100) and saves PTX and cubin."""
    device = Device(132, (capability // 10, capability % 10), SMEM_BYTES)
    target_only(device.capability)
    start = time.monotonic()
    (compiled,) = compile_kernels(CASE, CONFIG, device)
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
