"""Wrong arguments of the convolutions in examples/gluon/hopper: one error each, by name."""

from __future__ import annotations

import dataclasses
import pathlib
import sys

import pytest
from triton_ext.errors import DescriptorError, LaunchError, UnsupportedError
from triton_ext.gluon import nvidia as xnv
from triton_ext.host import capabilities

torch = pytest.importorskip("torch", reason="the examples' launchers need torch")
CAPABILITY = capabilities()["im2col-gluon"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from triton.experimental.gluon.language.nvidia.hopper import tma  # noqa: E402
from triton_ext.ops.families.gluon_config import ping_pong  # noqa: E402
from triton_ext.ops.families.gluon_wgrad import WgradTileConfig  # noqa: E402

from examples.gluon.hopper.dgrad import compile_conv_dgrad, conv_dgrad  # noqa: E402
from examples.gluon.hopper.fprop import compile_conv_fprop, conv_fprop  # noqa: E402
from examples.gluon.hopper.fprop_cluster import (  # noqa: E402
    compile_conv_fprop_cluster,
    in_cluster,
)
from examples.gluon.hopper.wgrad import (  # noqa: E402
    compile_conv_wgrad,
    compile_reduce,
    conv_wgrad,
)


def start(kernel, **options):
    """Calls a launcher with tensors that are right; ``size`` is of the filter or of the input."""
    x, w = torch.zeros(1, 8, 8, 64).half(), torch.zeros(64, 3, 3, 64).half()
    dy = torch.zeros(1, 8, 8, 64).half()
    options = {"padding": 1, "launcher": xnv.emulated, **options}
    if kernel == "fprop":
        return conv_fprop(x, w, **options)
    if kernel == "dgrad":
        return conv_dgrad(dy, w, options.pop("size", (8, 8)), **options)
    return conv_wgrad(x, dy, options.pop("size", (3, 3)), **options)


PLAIN = ping_pong(64, 64, 3)
KEPT = ping_pong(64, 64, 4, filter_steps=9)
OF_WGRAD = WgradTileConfig(main_blocks=2, stages=3)
EVERY = ("fprop", "dgrad", "wgrad")
WRONG = [
    *((each, {"stride": 1.5}, r"stride is 1.5: expected an int, or 2 of them, ") for each in EVERY),
    *((each, {"stride": 0}, "stride is 0: .* each at least 1") for each in EVERY),
    *((each, {"stride": (1, 0)}, r"stride is \(1, 0\): .* at least 1") for each in EVERY),
    *((each, {"stride": (1,)}, r"stride is \(1,\): expected an int, or 2 of") for each in EVERY),
    *((each, {"dilation": "a"}, "dilation is 'a': expected an int") for each in EVERY),
    *((each, {"dilation": 0}, "dilation is 0: .* each at least 1") for each in EVERY),
    *((each, {"padding": "same"}, "padding is 'same': expected an int, or 2") for each in EVERY),
    *((each, {"padding": ((1, 1),)}, r"padding is \(\(1, 1\),\): expected") for each in EVERY),
    *((each, {"launcher": 3}, "launcher is 3: expected a function such as") for each in ["fprop"]),
    (
        "dgrad",
        {"padding": ((1, 1), (1, 1))},
        "expected an int, or 2 ints, what is in front, each at least 0$",
    ),
    # Residues are counted from the first pixel that a tap reaches: they would be negative.
    ("dgrad", {"padding": -1, "stride": 2}, "padding is -1: expected an int, or 2 .* at least 0$"),
    ("dgrad", {"padding": (1, -1)}, r"padding is \(1, -1\): expected .* each at least 0$"),
    ("dgrad", {"size": 8}, "input_size is 8: expected 2 ints, each at least 1"),
    ("dgrad", {"size": (8,)}, r"input_size is \(8,\): expected 2 ints"),
    ("wgrad", {"size": 3}, "filter_size is 3: expected 2 ints, each at least 1"),
    ("wgrad", {"size": (3,)}, r"filter_size is \(3,\): expected 2 ints"),
    (
        "fprop",
        {"config": OF_WGRAD},
        "a WgradTileConfig: expected a TileC",
    ),
    (
        "dgrad",
        {"config": OF_WGRAD},
        "a WgradTileConfig: expected a TileC",
    ),
    ("dgrad", {"config": in_cluster(ping_pong(64, 64, 3))}, "a ClusterConfig: expected a TileC"),
    (
        "wgrad",
        {"config": ping_pong(64, 64, 3)},
        "is a TileConfig: expected a WgradTileConfig",
    ),
]


@pytest.mark.parametrize(("kernel", "changes", "message"), WRONG)
def test_a_wrong_argument_is_named(kernel, changes, message):
    with pytest.raises(LaunchError, match=message) as caught:
        start(kernel, **changes)
    assert ";" not in str(caught.value)


def test_all_that_is_wrong_is_named():
    with pytest.raises(LaunchError, match=r"stride is 0: .*; dilation is -1: .*; padding is None"):
        start("fprop", stride=0, dilation=-1, padding=None)


@pytest.mark.parametrize(
    ("function", "config", "options", "message"),
    [
        (compile_conv_fprop, None, {}, "config is a NoneType: expected a TileConfig$"),
        (compile_conv_fprop, PLAIN, {"rank": 7}, "rank is 7: expected 2 to 5"),
        (compile_conv_fprop, PLAIN, {"dtype": torch.float16}, "expected gl.float16 or gl.bfloat16"),
        (compile_conv_fprop, PLAIN, {"capability": 80}, "capability is 80: expected 90"),
        (
            compile_conv_fprop,
            dataclasses.replace(PLAIN, stages=60),
            {},
            "configuration .*: .* B of shared memory, a CTA has 232448",
        ),
        (compile_conv_dgrad, "128x128", {}, "config is a str: expected a TileConf"),
        (
            compile_conv_dgrad,
            PLAIN,
            {"stride": (2, 0)},
            r"^stride is \(2, 0\): expected an int, or 2 of them, each at least 1$",
        ),
        (
            compile_conv_dgrad,
            PLAIN,
            {"stride": (2, 2, 2), "dilation": (1,)},
            r"^stride is \(2, 2, 2\): expected an int, or 2 .*; dilation is \(1,\): expected an",
        ),
        (compile_conv_dgrad, PLAIN, {"stride": 2.0}, "^stride is 2.0: expected an int, or 2 of"),
        (compile_conv_dgrad, PLAIN, {"stride": None}, "^stride is None: expected an int, or 2 of"),
        (
            compile_conv_dgrad,
            PLAIN,
            {"stride": 2, "rank": 2},
            "^stride is 2: expected 1 for a matrix, rank 2$",
        ),
        (
            compile_conv_dgrad,
            PLAIN,
            {"dilation": (), "rank": 2},
            r"^dilation is \(\): expected an int of at least 1$",
        ),
        (
            compile_conv_dgrad,
            KEPT,
            {"stride": (1, 2)},
            "filter_steps is 9, with a stride no filter stays in shared memory",
        ),
        (
            compile_conv_dgrad,
            PLAIN,
            {"stride": 65535, "rank": 3},
            "stride 65535 in W: must be at most 46340",
        ),
        (compile_conv_wgrad, "128x128", {}, "config is a str: expected a WgradTileConfig$"),
        (compile_conv_wgrad, OF_WGRAD, {"rank": 6}, "rank is 6: expected 2 to 5"),
        (compile_conv_wgrad, OF_WGRAD, {"capability": 80}, "capability is 80: expected 90"),
        (
            compile_conv_wgrad,
            dataclasses.replace(OF_WGRAD, stages=60),
            {},
            "configuration .*: .* B of shared memory, a CTA has 232448",
        ),
        (compile_reduce, PLAIN, {"parts": 2}, "config is a TileConfig: expected a WgradTileConfig"),
        (
            compile_reduce,
            OF_WGRAD,
            {"parts": 0, "blocks": 1.5},
            "^parts is 0: expected an int of at least 1; blocks is 1.5: expected an int",
        ),
        (
            compile_conv_fprop_cluster,
            PLAIN,
            {},
            "config is a TileConfig: expected a ClusterConfig; in_cluster makes one of a TileConf",
        ),
    ],
)
def test_what_cannot_be_compiled_ahead_is_named(function, config, options, message):
    if function is compile_conv_fprop_cluster and not hasattr(tma, "async_load"):
        message = "convolutions in clusters need Triton 3.8 or newer"
    with pytest.raises((LaunchError, UnsupportedError), match=message):
        function(config, **options)


@pytest.mark.parametrize("kernel", [conv_fprop, conv_dgrad, conv_wgrad])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "is NoneType: expected a tensor"),
        (torch.tensor(1.0), r"is \[\]: expected 3 to 5 dimensions, none of them empty"),
        (torch.zeros(0, 8, 8, 64), r"is \[0, 8, 8, 64\]: expected 3 to 5 dimensions, none of them"),
        (torch.zeros(1, 8, 8, 64).to_sparse(), "is torch.sparse_coo: expected a dense tensor"),
        (torch.nested.nested_tensor([torch.zeros(8, 8, 64)]), "is nested: expected a dense tensor"),
        (torch.zeros(1, 8, 8, 64, device="meta"), "is on meta: expected a CUDA device, or the CPU"),
    ],
)
def test_what_is_no_tensor_of_pixels_is_named(kernel, value, message):
    size = () if kernel is conv_fprop else ((3, 3),)
    with pytest.raises(LaunchError, match=rf"^(x|dy) {message}.*; (w|dy) {message}"):
        kernel(value, value, *size, launcher=xnv.emulated)


def test_arrays_of_numpy_are_named():
    array = pytest.importorskip("numpy").zeros((1, 8, 8, 64))
    with pytest.raises(LaunchError, match=r"^x is a ndarray of numpy; torch\.from_numpy makes"):
        conv_fprop(array, torch.zeros(64, 3, 3, 64), launcher=xnv.emulated)


def test_tensors_on_two_devices():
    x, w = torch.zeros(1, 8, 8, 64).half(), torch.zeros(64, 3, 3, 64, device="meta").half()
    with pytest.raises(LaunchError, match=r"^w is on meta: expected a CUDA device, or the CPU$"):
        conv_fprop(x, w, launcher=xnv.emulated)
    with pytest.raises(DescriptorError, match="expected one GPU of sm_90, or launcher="):
        conv_fprop(x, torch.zeros(64, 3, 3, 64).half())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"store_n": 0}, "store_n is 0: expected an int of at least 1"),
        ({"stages": 4.0}, "stages is 4.0: expected an int of at least 1"),
        ({"block_n_rest": -64}, "block_n_rest is -64: expected an int of at least 0"),
        (
            {"columns": None, "group_m": 0},
            "block_n_main is None: .*; group_m is 0: expected an int",
        ),
        ({"rows": "64"}, "rows is '64': expected an int of at least 1"),
    ],
)
def test_numbers_of_a_configuration(changes, message):
    with pytest.raises(LaunchError, match=message):
        ping_pong(**{"rows": 64, "columns": 64, "stages": 4, **changes})


def test_turns_are_taken_or_not():
    with pytest.raises(LaunchError, match="ping_pong is 'no': expected True or False"):
        dataclasses.replace(PLAIN, ping_pong="no")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"share": "row"},
            r"^configuration: share is 'row': expected one of 'columns', 'rows', 't",
        ),
        ({"store_buffers": 0}, "store_buffers is 0: expected an int of at least 1$"),
        ({"store_buffers": -1}, "store_buffers is -1: expected an int of at least 1$"),
        ({"rest_consumers": -1}, "rest_consumers is -1: expected an int of at least 0$"),
        (
            {"rows_from_x": 1, "stages": 3.0},
            "rows_from_x is 1: expected True or False; stages is 3.0: expected an int of at least",
        ),
    ],
)
def test_numbers_of_a_configuration_of_wgrad(changes, message):
    with pytest.raises(LaunchError, match=message):
        WgradTileConfig(**{"main_blocks": 2, "stages": 3, **changes})


def test_what_is_put_in_a_cluster():
    with pytest.raises(LaunchError, match="config is a NoneType: expected a TileConfig"):
        in_cluster(None)
