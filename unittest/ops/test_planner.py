"""The planner: tables go first, then the models; and what it says of its choices.  Needs no GPU."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from problem_cases import problem_of
from triton_ext.errors import UnsupportedError
from triton_ext.ops import explain
from triton_ext.ops.api.explain import explain_case
from triton_ext.ops.core import planner
from triton_ext.ops.core.case import DIRECTIONS, Case
from triton_ext.ops.core.device import KNOWN, assumed_device
from triton_ext.ops.core.family import families_of
from triton_ext.ops.core.planner import make_plan
from triton_ext.ops.core.tables import Entry, encode, kind_of, lookup
from triton_ext.ops.families.gemm import GEMM_DGRAD
from triton_ext.ops.families.partial_im2col import AS_FPROP
from triton_ext.ops.families.patches import PATCHES, PatchConfig
from triton_ext.tools.cli import main

from benchmarks.suites import select_layers

HALF = torch.float16
META = torch.device("meta")
H200 = KNOWN["h200"]
GPU = replace(H200, name="A GPU of these tests")

# The stem of a ConvNeXt, whose gradient is computed by patches; the end of a VAE, whose gradient is
# fprop over packed rows.
STEM = problem_of(n=64, ci=3, co=96, size=(224, 224), taps=(4, 4), stride=4)
END = problem_of(n=1, ci=128, co=3, size=(512, 512), padding=1)


def case_of(problem, direction="dgrad", **others):
    return Case(direction=direction, problem=problem, dtype=HALF, **others)


@pytest.fixture
def table():
    """A function that puts a measured choice into this process's table of a GPU."""

    def add(case, config):
        entry = Entry(
            kind=kind_of(config), config=encode(config), us=12.5, measured="2026-11-27T00:00:00Z"
        )
        lookup.add(GPU.name, {case.key(GPU.num_sms): entry.raw()}, "a test")

    yield add
    lookup.forget(added=True)


@pytest.mark.parametrize(
    ("direction", "kind", "config_type"),
    [
        ("dgrad", "gemm", PatchConfig),  # tables would read entries of other directions so
        ("wgrad", "gemm", PatchConfig),
        ("wgrad", "patched", PatchConfig),
        ("dgrad", "patches", PatchConfig),
    ],
)
def test_a_kind_has_one_class_of_configurations(direction, kind, config_type):
    names = {"kind": kind, "direction": direction, "config_type": config_type}
    family = type("Other", (type(PATCHES),), names)()
    before = list(planner.FAMILIES)
    with pytest.raises(ValueError, match=f"register: .* than '{kind}' of PatchConfig"):
        planner.register(family)
    assert before == planner.FAMILIES


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (None, "expected a Family, got NoneType"),
        (type(PATCHES), "expected a Family, got ABCMeta"),
        ({"kind": ""}, "kind is '': expected a name"),
        ({"kind": None}, "kind is None: expected a name"),
        ({"kind": "\x1b[31m"}, r"kind is '\\x1b\[31m': expected a name"),
        (
            {"kind": "mine", "direction": "up"},
            "direction is 'up': expected fprop or dgrad or wgrad",
        ),
        ({"kind": "mine", "config_type": dict}, r"mine\.config_type: expected a frozen dataclass"),
    ],
)
def test_what_is_no_family_is_not_registered(family, message):
    if isinstance(family, dict):
        family = type("Other", (type(PATCHES),), family)()
    before = list(planner.FAMILIES)
    with pytest.raises((TypeError, ValueError), match=f"register: {message}"):
        planner.register(family)
    assert before == planner.FAMILIES


def first_of(family, case):
    return next(iter(family.candidates(case, GPU)))


@pytest.mark.parametrize(
    ("problem", "family", "kernel"),
    [(STEM, PATCHES, "patch_dgrad_kernel"), (END, AS_FPROP, "conv_fprop_kernel")],
    ids=["patches", "as fprop"],
)
def test_a_table_goes_before_the_models_of_every_family(table, problem, family, kernel):
    case = case_of(problem)
    assert planner.cheapest(case, GPU).family is family
    assert planner.plan(case, GPU).launcher.kernel.__name__ == kernel
    # Another family that was measured to be faster; then another configuration of this one.
    config = first_of(GEMM_DGRAD, case)
    table(case, config)
    assert planner.measured(case, GPU) == planner.Choice(GEMM_DGRAD, config)
    assert planner.plan(case, GPU).config == config
    config = [*family.candidates(case, GPU)][-1]
    lookup.forget(added=True)
    table(case, config)
    assert planner.measured(case, GPU) == planner.Choice(family, config)
    assert planner.plan(case, GPU).launcher.kernel.__name__ == kernel


def test_a_measured_choice_that_cannot_run_here_leaves_the_choice_to_the_models(table):
    # The same key with other padding: patches do not take it.
    padded = replace(STEM, padding=((0, 1), (0, 1)))
    moved = replace(STEM, padding=((1, 0), (1, 0)))
    assert case_of(padded).key(132) == case_of(moved).key(132)
    table(case_of(padded), first_of(PATCHES, case_of(STEM)))
    assert planner.measured(case_of(moved), GPU) is None
    assert planner.plan(case_of(moved), GPU).config == planner.cheapest(case_of(moved), GPU).config


def test_strides_decide_which_kernel_reads_a_view():
    one = problem_of(n=1, ci=128, co=3, size=(1024, 1024), padding=1)
    dense = case_of(one, "fprop")
    assert planner.cheapest(dense, H200).family.kind == "col2im"
    *outer, _ = dense.strides_of_x
    view = replace(dense, x_strides=(*outer[:3], 129))
    assert planner.cheapest(view, H200).family.kind != "col2im"
    assert view.dense == dense


def test_a_family_that_supersedes_others_is_not_compared_with_them():
    found = {each.family.kind: each for each in planner.offers(case_of(END), H200)}
    assert found["gemm"].superseded_by == "as_fprop"
    assert found["gemm"].times
    compared = planner.offers(case_of(END), H200, compared=True)
    assert [each.family.kind for each in compared] == ["as_fprop"]
    # Where it does not pay, the others are.
    wide = case_of(problem_of(n=8, ci=64, co=64, size=(56, 56), padding=1))
    found = {each.family.kind: each for each in planner.offers(wide, H200)}
    assert "packed rows take" in found["as_fprop"].passed_over
    assert not found["gemm"].superseded_by


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="Linux has /dev/full")
@pytest.mark.parametrize("words", [["explain", "1,8,9,9 -> 8 k3"], ["doctor"]], ids=str)
def test_a_full_output_is_an_error_without_a_traceback(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "triton_ext", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    expected = "<stdout>: error: cannot be written: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_a_configuration_of_another_direction_is_refused():
    config = first_of(PATCHES, case_of(STEM))
    with pytest.raises(UnsupportedError, match="PatchConfig is no configuration of fprop"):
        planner.plan(case_of(STEM, "fprop"), H200, config)


DENSE = problem_of(n=2, ci=64, co=64, size=(14, 14), padding=1)
SEPARATE = problem_of(n=2, ci=64, co=64, size=(14, 14), padding=1, groups=64)
FEW = problem_of(n=2, ci=3, co=64, size=(14, 14), padding=1)
LAST = problem_of(n=2, ci=64, co=3, size=(14, 14), padding=1)
IN_GROUPS = problem_of(n=2, ci=64, co=64, size=(14, 14), padding=1, groups=8)


@pytest.mark.parametrize(
    ("direction", "kind", "taken", "refused", "message"),
    [
        ("fprop", "gluon", DENSE, IN_GROUPS, "groups=8, expected 1"),
        ("fprop", "gemm", DENSE, replace(FEW, filter_size=(9, 9), stride=(9, 9)), "tap by tap"),
        ("fprop", "packed", FEW, IN_GROUPS, "channels of other groups"),
        ("fprop", "gather", FEW, DENSE, "64 channels: from 16 bytes of channels on"),
        ("fprop", "col2im", LAST, replace(LAST, stride=(2, 2)), "every pixel meets every tap"),
        ("fprop", "depthwise", SEPARATE, DENSE, "no depthwise convolution"),
        ("fprop", "merged", IN_GROUPS, DENSE, "groups=1 of 64 and 64 channels"),
        ("dgrad", "as_fprop", END, replace(END, stride=(2, 2)), "expected stride 1"),
        ("dgrad", "patches", STEM, DENSE, "no patches beside each other"),
        ("wgrad", "gluon_wgrad", DENSE, IN_GROUPS, "groups=8, expected 1"),
        ("wgrad", "swapped", LAST, replace(LAST, stride=(2, 2)), "expected 1, dy has no pixels"),
        ("wgrad", "depthwise_wgrad", SEPARATE, DENSE, "no depthwise convolution"),
    ],
)
def test_a_configuration_is_refused_where_its_family_refuses_the_case(
    direction, kind, taken, refused, message
):
    (family,) = (each for each in families_of(direction) if each.kind == kind)
    config = next(iter(family.candidates(case_of(taken, direction), H200)))
    with pytest.raises(UnsupportedError, match=f"{kind}: .*{re.escape(message)}"):
        planner.plan(case_of(refused, direction), H200, config)


# ---- explain -----------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_is_explained_is_what_is_planned(direction):
    def innermost(config):
        inner = getattr(config, "config", None)
        return config if inner is None else innermost(inner)

    for layer in select_layers("all")[::7]:
        case = case_of(layer.problem, direction)
        chosen = explain_case(case, H200).chosen
        with assumed_device(H200):
            assert innermost(chosen.config) == make_plan(case, META).config, layer.name


def test_every_family_is_there_with_its_times_or_its_refusal():
    x = torch.empty(1, 512, 512, 128, dtype=HALF, device="meta").permute(0, 3, 1, 2)
    weight = torch.empty(3, 128, 3, 3, dtype=HALF, device="meta")
    found = explain(x, weight, padding=1, direction="dgrad")
    assert found.chosen is found.candidates[0]
    assert found.chosen.kind == "as_fprop"
    # Copies of dy and of the weight beside the kernel.
    names = ("launch", "tensor cores", "L2", "tiles", "waves", "DRAM", "copies")
    assert tuple(name for name, _ in found.chosen.parts) == names
    assert found.chosen.us == pytest.approx(sum(us for _, us in found.chosen.parts))
    by_kind = {each.kind: each for each in found.candidates}
    assert set(by_kind) == {
        *("gemm", "gluon", "as_fprop", "patches", "depthwise", "merged", "direct", "torch")
    }
    assert by_kind["patches"].config is None
    assert "no patches" in by_kind["patches"].refusal
    assert by_kind["gemm"].refusal == "as_fprop goes first"
    assert [name for name, _ in by_kind["direct"].parts] == ["launch", "instructions"]
    lines = str(found).splitlines()
    assert lines[0] == "dgrad 1x128x512x512 -> 3 k3x3 float16 on NVIDIA H200, 132 multiprocessors"
    assert lines[2].startswith("* as_fprop ")
    assert any(line.startswith("  patches         refused: ") for line in lines)


def test_a_table_is_explained(table):
    case = case_of(STEM)
    config = first_of(GEMM_DGRAD, case)
    table(case, config)
    found = explain_case(case, GPU)
    assert (found.chosen.kind, found.chosen.config) == ("gemm", config)
    assert found.chosen.measured_us == 12.5
    assert found.key == case.key(132)
    assert "measured 12.5 us" in str(found).splitlines()[2]
    # The models would have chosen another family, which is still there.
    assert any(each.kind == "patches" and each.config is not None for each in found.candidates)


def test_what_no_kernel_takes_is_explained():
    found = explain_case(replace(case_of(END), dtype=torch.int8), H200)
    assert found.chosen is None
    assert "refused: dtype torch.int8" in str(found)
    x, weight = (torch.empty(1, 8, 3, 3, device="meta") for _ in range(2))
    with pytest.raises(ValueError, match="direction is 'up': expected fprop or dgrad or wgrad"):
        explain(x, weight, direction="up")


def test_a_call_is_explained_with_its_bias_and_when_it_is_empty():
    x = torch.empty(2, 8, 8, 64, device="meta").permute(0, 3, 1, 2)
    weight, bias = torch.empty(64, 64, 3, 3, device="meta"), torch.empty(64, device="meta")
    found = explain(x, weight, bias, 1, 1)
    assert found.case == explain(x, weight, padding=1).case
    for direction in DIRECTIONS:
        empty = explain(x[:0].half(), weight.half(), padding=1, direction=direction)
        assert empty.case.problem.batch == 0
        assert str(empty)
    with pytest.raises(TypeError, match="device is 'a100': expected a Device"):
        explain(x, weight, device="a100")


def test_the_command(capsys):
    shape = "32,96,56,56 -> 96 k7 g96"
    assert main(["explain", shape, "--direction", "fprop", "wgrad"]) == 0
    out = capsys.readouterr().out
    assert "fprop 32x96x56x56 -> 96 k7x7 g96 float16 on NVIDIA H200" in out
    assert "* depthwise " in out
    assert "* depthwise_wgrad " in out
    assert main(["explain", shape, "--direction", "dgrad", "--dtype", "int8"]) == 1
    assert "refused: dtype torch.int8" in capsys.readouterr().out
    assert main(["explain", "32,96 -> 7"]) == 2
    assert "shape '32,96 -> 7': expected N,Ci,SIZE -> Co kTAPS" in capsys.readouterr().err
    assert main(["explain", shape, "--dtype", "float12"]) == 2
    assert "dtype 'float12': expected one of float16" in capsys.readouterr().err
