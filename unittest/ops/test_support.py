"""What ``support`` answers; whether the calls agree is tested in ``interpreter_functional.py``."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from triton_ext.errors import UnsupportedError
from triton_ext.ops import conv_transpose2d, support
from triton_ext.ops.core import planner, refusals
from triton_ext.ops.core.case import Case
from triton_ext.ops.core.descriptors import channels_last
from triton_ext.ops.core.epilogue import EpilogueSpec


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return channels_last(torch.empty(shape, dtype=dtype, device="meta"))


def test_yes():
    found = support(meta(2, 8, 6, 5), meta(16, 8, 3, 3), padding=1)
    assert found
    assert (found.refusals, found.dgrad, found.wgrad) == ((), (), ())
    assert str(found) == "fprop: yes\ndgrad: yes\nwgrad: yes"
    assert found.problem.output_size == (6, 5)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_every_dimension(dims):
    assert support(meta(2, 8, *(7,) * dims), meta(16, 8, *(3,) * dims), padding="same")


def test_geometry_by_direction():
    # The gradient of the input has no limit of strides: it walks over dy.
    found = support(meta(1, 8, 30, 30), meta(8, 8, 1, 1), stride=(9, 10))
    assert not found
    assert found.refusals == found.fprop
    assert [r for r in found.fprop if "stride" in r] == [
        "conv stride 9 in H: TMA supports 1..8",
        "conv stride 10 in W: TMA supports 1..8",
        "larger strides need taps of a row that are read as channels; one tap in W: there is "
        "nothing to pack",
    ]
    assert found.dgrad == ()
    assert found.wgrad == found.fprop
    assert "fprop: no, conv stride 9 in H" in str(found)
    # Neither have the others where taps of a row are packed.
    found = support(meta(1, 8, 30, 30), meta(8, 8, 3, 3), stride=(9, 10))
    assert found.fprop == found.dgrad == found.wgrad == ()


def test_dtypes():
    found = support(meta(1, 8, 6, 6, dtype=torch.float64), meta(8, 8, 3, 3, dtype=torch.float64))
    for direction in (found.fprop, found.dgrad, found.wgrad):
        assert any("float64" in reason for reason in direction)


def test_memory_order_counts_where_x_is_read():
    x = torch.empty(1, 8, 6, 6, dtype=torch.float16, device="meta")
    found = support(x, meta(8, 8, 3, 3))
    (reason,) = found.fprop
    assert reason.startswith("channels must be contiguous (channels-last), got channel stride 36")
    assert (found.dgrad, found.wgrad) == ((), found.fprop)


def test_transposed_convolutions():
    x, weight = meta(1, 16, 6, 6), meta(16, 8, 3, 3)
    found = support(x, weight, stride=2, transposed=True, output_padding=1)
    assert found
    assert found.problem.input_size == (14, 14)
    assert found.problem.in_channels == 8
    found = support(x, weight, dilation=2, transposed=True, output_padding=1)
    assert not found
    assert found.refusals == ("output_padding (1, 1) is not smaller than stride (1, 1)",)
    wrong = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).contiguous()
    found = support(wrong, weight, transposed=True)
    assert (bool(found), found.fprop, len(found.wgrad)) == (False, (), 1)


def test_the_machine_counts_for_real_and_fake_tensors():
    if torch.cuda.is_available():
        pytest.skip("about a machine without a GPU")
    x, weight = (
        channels_last(torch.empty(s, dtype=torch.float16)) for s in ((1, 8, 6, 6), (8, 8, 3, 3))
    )
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (x, weight)]
    for tensors in ((x, weight), fakes):
        found = support(*tensors)
        for direction in (found.fprop, found.dgrad, found.wgrad):
            assert any("TRITON_INTERPRET=1" in reason for reason in direction)


def test_addresses_count():
    memory = torch.empty(1, 6, 6, 24, dtype=torch.float16).permute(0, 3, 1, 2)
    found = support(memory[:, 4:20], torch.empty(8, 16, 3, 3, dtype=torch.float16))
    assert any("no multiple of 16 bytes; call x.clone()" in reason for reason in found.fprop)


def test_autocast_counts():
    x, weight = meta(1, 8, 6, 6, dtype=torch.float32), meta(8, 8, 3, 3, dtype=torch.float32)
    given = [torch.empty_strided(t.shape, t.stride()) for t in (x, weight)]

    def complaints():
        return [r for r in support(*given).wgrad if "float32" in r]

    assert complaints()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not complaints()


def test_what_does_not_fit_is_an_error_not_an_answer():
    with pytest.raises(ValueError, match=r"conv2d: x has 8 channels, weight .* expects 4"):
        support(meta(1, 8, 6, 6), meta(8, 4, 3, 3))
    with pytest.raises(TypeError, match=r"weight is torch.bfloat16"):
        support(meta(1, 8, 6, 6), meta(8, 8, 3, 3, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="support: x must be a tensor, got tuple"):
        support((2, 8, 6, 6), (16, 8, 3, 3))
    with pytest.raises(ValueError, match=r"output_padding \(1, 1\) needs transposed=True"):
        support(torch.ones(1, 8, 6, 6).half(), torch.ones(8, 8, 3, 3).half(), output_padding=1)
    with pytest.raises(ValueError, match=r"support: expected x \[N, Ci, H, W\]"):
        support(meta(8, 6), meta(8, 8, 3, 3))


def said_by(function, *arguments, **keywords):
    with pytest.raises((ValueError, UnsupportedError)) as caught:
        function(*arguments, **keywords)
    return str(caught.value)


def test_int8_with_a_bias_as_the_call_says():
    x, weight = (meta(*shape, dtype=torch.int8) for shape in ((1, 16, 6, 6), (32, 16, 3, 3)))
    assert support(x, weight)
    for dtype in (torch.float32, torch.int32):
        found = support(x, weight, torch.empty(32, dtype=dtype, device="meta"))
        assert found.fprop == ("an epilogue of int8 needs an out_dtype of floating point",)
        assert not found
    spec = EpilogueSpec(bias=True)
    case = Case(direction="fprop", problem=found.problem, dtype=torch.int8, epilogue=spec)
    with pytest.raises(UnsupportedError) as caught:
        planner.check(case, x.device)
    assert str(caught.value) == f"conv2d: {found.refusals[0]}"


@pytest.mark.parametrize(
    "keywords",
    [
        {"padding": "same"},
        {"padding": "same", "stride": 2},
        {"padding": "valid"},
        {"output_padding": -1},
    ],
)
def test_transposed_convolutions_refuse_as_the_call_does(keywords):
    x, weight = meta(1, 16, 6, 6), meta(16, 8, 3, 3)
    expected = said_by(conv_transpose2d, x, weight, **keywords)
    assert expected.startswith(("conv_transpose2d: padding", "conv_transpose2d: output_padding"))
    assert said_by(support, x, weight, transposed=True, **keywords) == expected
    assert said_by(support, x[0], weight, transposed=True, **keywords) == expected


def test_without_a_batch_dimension():
    found = support(meta(1, 8, 6, 5)[0], meta(16, 8, 3, 3), padding=1)
    assert found
    assert (found.problem.batch, found.problem.input_size) == (1, (6, 5))
    found = support(meta(1, 16, 6, 5)[0], meta(16, 8, 3, 3), transposed=True)
    assert (bool(found), found.problem.input_size) == (True, (8, 7))


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_fp32_asks_torch_whether_it_may_be_rounded(precision):
    settings = torch.backends.cudnn.conv
    before = settings.fp32_precision
    try:
        settings.fp32_precision = precision
        found = refusals.tf32_refusals(torch.float32, torch.device("cuda"))
    finally:
        settings.fp32_precision = before
    if precision == "tf32":
        assert not found
    else:
        (reason,) = map(str, found)
        assert 'TF32, which torch.backends.cudnn.conv.fp32_precision = "ieee" forbids' in reason
