"""The Gluon convolutions of examples/gluon/hopper on CPU tensors."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import sys

import pytest
from triton_ext.gluon import nvidia as xnv

# The examples are not installed; they are imported from the root of the checkout.
sys.path.insert(0, str(pathlib.Path(__file__).absolute().parents[2]))

from triton_ext.ops.families.gluon_config import cooperative, keep_filter, ping_pong
from triton_ext.ops.families.gluon_wgrad import WgradTileConfig

from examples.gluon.hopper.dgrad import conv_dgrad
from examples.gluon.hopper.fprop import conv_fprop
from examples.gluon.hopper.wgrad import conv_wgrad

__all__ = ["CONFIGS", "WGRAD_CONFIGS", "keep_filter", "one_triton_cache", "run"]

CONFIGS = (
    ping_pong(64, 64, 3, store_n=32, store_buffers=2, group_m=2),
    cooperative(64, 2, 64, 3, block_n_rest=32, store_n=32),
    cooperative(64, 1, 128, 2),
)
WGRAD_CONFIGS = (
    WgradTileConfig(main_blocks=2, stages=3, store_buffers=2),
    WgradTileConfig(
        share="rows", main_blocks=2, rest_blocks=1, rest_consumers=1, pixels=32, stages=3
    ),
    WgradTileConfig(share="tile", main_blocks=2, rest_blocks=1, pixels=32, stages=3),
    WgradTileConfig(main_blocks=2, stages=4, rows_from_x=True),
)


def run(kernel, case, config, seed=0, edit=None, **options):
    """What a kernel gives, and what it should give.

    Args:
        kernel: ``"fprop"``, ``"dgrad"`` or ``"wgrad"``.
        case: A :class:`conv_cases.Case`.
        config: How to compile.
        seed: Decides the order of the partitions.
        edit: Changes the TTGIR.
        options: More arguments of the launcher.
    """
    x, w, dy = case.tensors()
    launcher = functools.partial(xnv.emulated, seed=seed, edit=edit)
    conv = {"stride": case.stride, "padding": case.padding, "dilation": case.dilation}
    options = {**options, **conv, "config": config, "launcher": launcher}
    if kernel == "fprop":
        return conv_fprop(x, w, **options), case.fprop(x, w)
    dx, dw = case.gradients(x, w, dy)
    if kernel == "dgrad":
        return conv_dgrad(dy, w, case.size, **options), dx
    return conv_wgrad(x, dy, case.filter_size, **options), dw


@contextlib.contextmanager
def one_triton_cache(tmp_path_factory):
    """Within, a Triton cache for a whole module: its tests compile the same again and again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton-cache")))
        yield patch
