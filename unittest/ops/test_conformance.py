"""What every family and rewrite of the registry passes, in each direction that it has.

In Triton's interpreter with ``TRITON_INTERPRET=1``, as the check ``pytest-interpreted`` runs them;
without it, tests marked ``gpu`` run the same cases on a GPU.  A family that is registered is
tested; one from outside the package is registered by ``-p MODULE``.  One family:
``TRITON_INTERPRET=1 python -m pytest unittest/ops/test_conformance.py -k fprop-gather``.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from conformance_cases import (
    BY_ID,
    DEVICE,
    EPILOGUES,
    LAYOUTS,
    PLACE,
    PROBLEMS,
    bits,
    bound,
    case_of,
    check,
    configs,
    expected,
    first_taken,
    neighbours,
    operands,
    packings,
    refusals_of,
    run,
    swapped_expected,
    taken,
    uninitialized_is_nan,
)
from host_plan import drawn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from problem_cases import problem_of
from triton_ext import ops
from triton_ext.errors import LaunchError, TritonExtError
from triton_ext.host import capabilities
from triton_ext.ops.core.device import IS_INTERPRETED
from triton_ext.ops.core.epilogue import EpilogueSpec
from triton_ext.ops.core.refusals import DTYPES, layout_refusal, refused
from triton_ext.ops.families.direct import DIRECT

# Infinities and what they become are part of the tests.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

HALF = torch.float16
IM2COL = capabilities()["im2col"]
#: Problems of more than a tile, by every configuration.
TILED = (
    "tiles",
    "odd-tail-in-k",
    "rgb-wide",
    "patches-many",
    "end-rows",
    "groups-tiles",
    "small-groups",
    "depthwise-strided",
)
TAKEN = {name: taken(family) for name, family in BY_ID.items()}


def problems_of(name):
    """The problems of a family; a third of those that are many, and other families compute."""
    family, names = BY_ID[name], TAKEN[name]

    def is_others(problem):
        case = first_taken(family, PROBLEMS[problem])
        return family.passed_over(case, DEVICE) or (family.is_gemm and case.problem.groups > 8)

    return [
        problem
        for number, problem in enumerate(names)
        if number % 3 == 0 or len(names) < 40 or not is_others(problem)
    ]


def where_kernels_run(test):
    """Marks a test that runs here where kernels are interpreted, else on a GPU."""
    if IS_INTERPRETED:
        return test
    return pytest.mark.gpu(pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)(test))


def each(*rows, names=("name", "which")):
    """Parametrises a test by families and what comes with each of them."""
    ids = ["-".join(map(str, row)).replace("torch.", "") for row in rows]
    return pytest.mark.parametrize(names, rows, ids=ids)


def first_case(name, *preferred, dtype=HALF):
    """A case of a family, of the first problem that it takes, in a dtype that it takes."""
    names = [problem for problem in preferred if problem in TAKEN[name]] or TAKEN[name]
    return first_taken(BY_ID[name], PROBLEMS[names[0]], dtype)


# --- geometry and types -------------------------------------------------------------------------


@where_kernels_run
@each(*((name, problem) for name in BY_ID for problem in problems_of(name)))
def test_problem(name, which):
    family, number = BY_ID[name], list(PROBLEMS).index(which)
    case = first_taken(family, PROBLEMS[which], (HALF, torch.bfloat16)[number % 2])
    wide = replace(case, out_dtype=torch.float32)
    if family.direction == "wgrad" and number % 3 == 0 and not refusals_of(family, wide):
        case = wide
    bias = family.direction == "dgrad" and number % 3 > 0
    how = {"plain_order": number % 4 < 2, "bias": bias, "num_sms": (2, 5, 16)[number % 3]}
    check(family, case, repeats=number % 2 == 0, **how)


@where_kernels_run
@each(*((name, dtype) for name in BY_ID if TAKEN[name] for dtype in DTYPES[BY_ID[name].direction]))
def test_dtype(name, which):
    family = BY_ID[name]
    # A product of float8 in the interpreter has to end in another type.
    out = torch.float16 if which.itemsize == 1 and which.is_floating_point else None
    for problem in TAKEN[name]:
        case = case_of(family, PROBLEMS[problem], which)
        if family.direction == "fprop":
            case = replace(case, epilogue=EpilogueSpec(out_dtype=out))
        if not refusals_of(family, case):
            check(family, case)
            return
    pytest.skip(f"{name} has no {which}: {'; '.join(refusals_of(family, case))}")


@where_kernels_run
@each(*((name, each_) for name in BY_ID if TAKEN[name] and BY_ID[name].direction == "fprop"
        for each_ in EPILOGUES))  # fmt: skip
def test_epilogue(name, which):
    family = BY_ID[name]
    # One with rows of 16 bytes of y, and one without.
    found = ([problem for problem in ENDS if problem in TAKEN[name]] or TAKEN[name])[:2]
    cases = [replace(first_case(name, problem), epilogue=EPILOGUES[which]) for problem in found]
    cases = [case for case in cases if not refusals_of(family, case)]
    if not cases:
        pytest.skip(f"{name} does not end in {which}")
    for number, case in enumerate(cases):
        check(family, case, one_scale=which == "one-scale", plain_order=number == 1)


ENDS = ("same", "odd-channels", "rgb", "small-groups", "depthwise", "one-channel", "end")


PACKED = [
    (name, problem)
    for name, family in BY_ID.items()
    for problem in TAKEN[name][::2]
    if family.reads_packed and packings(first_taken(family, PROBLEMS[problem]))
]


@where_kernels_run
@each(*PACKED)
def test_packing(name, which):
    family = BY_ID[name]
    case = first_taken(family, PROBLEMS[which])
    found, number = packings(case), list(PROBLEMS).index(which)
    packed = replace(case, packing=found[number % len(found)])
    assert not refusals_of(family, packed)
    check(family, packed, bias=family.direction == "dgrad" and number % 2 == 1)


@where_kernels_run
@pytest.mark.parametrize("name", [name + "-" for name in BY_ID if TAKEN[name]])
@settings(
    max_examples=drawn(12),
    deadline=None,
    derandomize=True,
    database=None,
    # A case is small as it is; shrinking it in the interpreter takes minutes.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_drawn(name, data):
    family = BY_ID[name[:-1]]
    case, config, how = data.draw(neighbours(family, tuple(TAKEN[name[:-1]])))
    check(family, case, config, repeats=True, **how)


# --- NaN and infinity ---------------------------------------------------------------------------

#: Padding, tails of channels, filled channels and groups that share tiles.
SPOILED = (
    "same", "everything", "one-side", "matrix", "matrix-tails", "matrix-strided", "tail-in-k",
    "odd-channels", "1-D", "3-D", "rgb", "windows", "in-place", "rows-in-padding", "patches",
    "patches-1-D", "end", "end-rows", "groups", "groups-tails", "groups-filled", "small-groups",
    "small-groups-strided", "tiny-groups", "depthwise", "depthwise-strided", "depthwise-1-D",
    "depthwise-3-D",
)  # fmt: skip


@where_kernels_run
@each(*((name, problem) for name in BY_ID for problem in problems_of(name) if problem in SPOILED))
def test_nan(name, which):
    """A bad number of an operand shows where torch's convolution of a padded x has it."""
    family, number = BY_ID[name], list(PROBLEMS).index(which)
    case = first_case(name, which)
    if family.direction == "fprop" and number % 2:
        case = replace(case, epilogue=EpilogueSpec(activation="relu"))
    plan = bound(family, case)
    for place in (0, 1):
        drawn_, epilogue = operands(case)
        # Infinity times zero is NaN: the only zeros are those of the padding.
        tensors = [torch.where(t == 0, torch.ones_like(t), t) for t in drawn_]
        bad = (math.nan, -math.inf, math.inf)[(number + place) % 3]
        spoiled = tensors[place]
        spoiled[tuple((number + 3 * i) % extent for i, extent in enumerate(spoiled.shape))] = bad
        found = run(case, plan, tensors, epilogue).cpu()
        # Convolutions of the CPU multiply no zeros that padding or strides insert.
        tensors = [tensor.cpu() for tensor in tensors]
        exact = expected(case, tensors, epilogue)[0]
        if family.kind == "swapped":
            exact = swapped_expected(case, tensors)
        finite = exact.isfinite()
        if family.direction == "dgrad" and place == 1 and family.kind != "patches":
            # Zeros beside dy meet the bad number, too, and show in its channel.
            assert not (found.isfinite() & ~finite).any()
            finite = finite & finite.flatten(2).all(2).all(0).view(-1, *(1,) * (finite.dim() - 2))
            assert found[finite].isfinite().all()
        else:
            assert torch.equal(found.isnan(), exact.isnan()), bad
            assert torch.equal(found.isfinite(), finite), bad
        error = (found.double() - exact)[finite].abs().max() if finite.any() else 0
        assert error <= 8e-3 * max(1.0, exact[finite].abs().max() if finite.any() else 1.0)


# --- memory -------------------------------------------------------------------------------------


def strides_of(case, tensors):
    """The strides of the operands with pixels, as a case has them."""
    names = {"fprop": ("x",), "dgrad": ("dy",), "wgrad": ("x", "dy")}[case.direction]
    return {f"{which}_strides": t.stride() for which, t in zip(names, tensors, strict=False)}


@where_kernels_run
@each(*((name, layout) for name in BY_ID if TAKEN[name] for layout in LAYOUTS))
def test_layout(name, which):
    """Operands in other memory give the same, or are refused; never something else."""
    refused = refused_operands(name, which)
    if IS_INTERPRETED and name in REFUSED_LAYOUTS:
        assert refused == ({0} if which in REFUSED_LAYOUTS[name].split() else set())


def refused_operands(name, which):
    """Checks a layout of each operand; returns the numbers of those that are refused."""
    family = BY_ID[name]
    refused = set()
    for problem in [problem for problem in MEMORY if problem in TAKEN[name]][:2] or TAKEN[name][:1]:
        for place in (0, 1):
            case = first_case(name, problem)
            tensors, _ = operands(case)
            tensors[place] = LAYOUTS[which](tensors[place])
            case = replace(case, **strides_of(case, tensors))
            # Functions refuse an x whose channels are not neighbours.
            is_x = place == 0 and case.direction == "fprop"
            if is_x and layout_refusal(name, "x", tensors[0]):
                continue
            if refusals_of(family, case):
                refused.add(place)
                continue
            try:
                check(family, case, tensors=tensors)
            except TritonExtError:
                refused.add(place)
    return refused


MEMORY = ("same", "odd-channels", "rgb", "end", "patches", "small-groups", "depthwise")
#: Layouts of the first operand that families refuse; none refuses one of the second.
TMA = "by-one slice one-image"
REFUSED_LAYOUTS = {
    **dict.fromkeys(("fprop-gemm", "fprop-merged"), TMA),
    **dict.fromkeys(
        ("dgrad-gemm", "dgrad-merged", "dgrad-patches", "wgrad-wgrad"),
        f"contiguous one-number {TMA}",
    ),
    "fprop-col2im": "one-image",
    "wgrad-swapped": "contiguous inside one-image one-number",
    **dict.fromkeys(
        (
            "fprop-packed", "fprop-gather", "fprop-depthwise", "fprop-direct", "dgrad-as_fprop",
            "dgrad-depthwise", "dgrad-direct", "wgrad-packed", "wgrad-depthwise_wgrad",
        ),
        "",
    ),
}  # fmt: skip


@where_kernels_run
@pytest.mark.parametrize("name", [name + "-" for name in BY_ID if TAKEN[name]])
def test_outputs_and_operands_that_do_not_fit(name):
    family = BY_ID[name[:-1]]
    case = first_case(name[:-1])
    tensors, epilogue = operands(case)
    plan = bound(family, case)
    found = run(case, plan, tensors, epilogue)
    other = torch.float32 if found.dtype != torch.float32 else HALF
    for out in (found.to(other), found[..., :0], found[None]):
        with pytest.raises(ValueError, match="out: expected"):
            run(case, plan, tensors, epilogue, out)
    if family.direction != "wgrad" and min(found.shape[1:]) > 1:
        with pytest.raises(ValueError, match="packed channels-last memory on a 16-byte boundary"):
            run(case, plan, tensors, epilogue, found.contiguous())


@where_kernels_run
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_an_empty_batch(dims):
    x = torch.zeros(0, *(5,) * dims, 8, dtype=HALF, device=PLACE).movedim(-1, 1)
    weight = torch.ones(16, 8, *(3,) * dims, dtype=HALF, device=PLACE)
    conv, of_x, of_weight = (getattr(ops, f"conv{dims}d{end}") for end in ("", "_input", "_weight"))
    y = conv(x, weight, padding=1)
    assert y.shape == (0, 16, *x.shape[2:])
    assert of_x(x.shape, weight, y, padding=1).shape == x.shape
    with uninitialized_is_nan():
        dw = of_weight(x, weight.shape, y, padding=1)
    assert torch.equal(dw, torch.zeros_like(weight))


# --- on a GPU only: sizes of networks, all configurations, graphs ---------------------------------

#: Layers at the sizes that networks have them.
LAYERS = {
    "3x3": problem_of(n=8, ci=64, co=64, size=(56, 56), padding=1),
    "1x1": problem_of(n=8, ci=256, co=64, size=(56, 56), taps=(1, 1)),
    "1x1-strided": problem_of(n=8, ci=256, co=512, size=(28, 28), taps=(1, 1), stride=2),
    "3x3-strided": problem_of(n=8, ci=128, co=256, size=(56, 56), stride=2, padding=1),
    "7x7-image": problem_of(n=32, ci=512, co=512, size=(7, 7), padding=1),
    "stem": problem_of(n=4, ci=3, co=64, size=(224, 224), taps=(7, 7), stride=2, padding=3),
    "small-stem": problem_of(n=8, ci=3, co=32, size=(224, 224), stride=2, padding=1),
    "patches": problem_of(n=4, ci=3, co=384, size=(224, 224), taps=(16, 16), stride=16),
    "latent": problem_of(ci=4, co=512, size=(64, 64), padding=1),
    "end": problem_of(n=1, ci=128, co=3, size=(256, 256), padding=1),
    "audio": problem_of(n=4, ci=1, co=512, size=(16000,), taps=(10,), stride=5),
    "1-D": problem_of(n=8, ci=128, co=384, size=(202,), taps=(3,), padding=1),
    "video": problem_of(
        ci=3, co=64, size=(9, 112, 112), taps=(3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3)
    ),
    "3-D": problem_of(n=2, ci=64, co=128, size=(8, 28, 28), taps=(3, 3, 3), padding=1),
    "groups": problem_of(n=8, ci=256, co=256, size=(28, 28), padding=1, groups=4),
    "resnext": problem_of(n=8, ci=256, co=256, size=(28, 28), padding=1, groups=32),
    "convnext": problem_of(n=8, ci=96, co=96, size=(56, 56), taps=(7, 7), padding=3, groups=96),
    "mobilenet": problem_of(n=8, ci=96, co=96, size=(56, 56), stride=2, padding=1, groups=96),
}
ON_A_GPU = {} if IS_INTERPRETED else BY_ID


@where_kernels_run
@each(*((name, layer) for name in ON_A_GPU for layer in LAYERS
        if not refusals_of(BY_ID[name], case_of(BY_ID[name], LAYERS[layer]))))  # fmt: skip
def test_layer(name, which):
    """Some of the configurations that models expect to be fast, at the size of a network."""
    family = BY_ID[name]
    case = case_of(family, LAYERS[which])
    for config in configs(family, case)[:40:10]:
        check(family, case, config, repeats=True)


@where_kernels_run
@each(*((name, problem) for name in ON_A_GPU for problem in TAKEN[name] if problem in TILED))
def test_every_configuration(name, which):
    family = BY_ID[name]
    case = first_case(name, which)
    for number, config in enumerate(configs(family, case)):
        check(family, case, config, bias=family.direction == "dgrad", repeats=number % 4 == 0)


@where_kernels_run
@pytest.mark.parametrize("name", [name + "-" for name in ON_A_GPU if TAKEN[name]])
def test_a_graph_replays_with_other_inputs(name):
    family = BY_ID[name[:-1]]
    case = first_case(name[:-1], "same")
    tensors, epilogue = operands(case)
    plan = bound(family, case)
    first = run(case, plan, tensors, epilogue)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(case, plan, tensors, epilogue)
    tensors[0].mul_(-2)
    for _ in range(2):
        found.fill_(math.nan)
        graph.replay()
        assert torch.equal(bits(found), bits(run(case, plan, tensors, epilogue)))
    assert not torch.equal(found, first)


# --- refusals -----------------------------------------------------------------------------------


def test_a_family_of_one_dtype_has_cases():
    class Narrow(type(DIRECT)):
        def case_refusals(self, case, device):
            return () if case.dtype == torch.bfloat16 else refused(f"dtype is {case.dtype}")

    family = Narrow()
    assert taken(family) == TAKEN["fprop-direct"]
    assert first_taken(family, PROBLEMS["plain"]).dtype == torch.bfloat16


@where_kernels_run
@pytest.mark.parametrize("name", [name + "-" for name in BY_ID])
def test_what_is_refused_is_named(name):
    """A family names why it refuses a case, and why it refuses numbers of a configuration."""
    name = name[:-1]
    family = BY_ID[name]
    for problem in PROBLEMS.values():
        for dtype in (HALF, torch.float32, torch.int8):
            found = refusals_of(family, case_of(family, problem, dtype))
            assert all(isinstance(text, str) and len(text) > 10 for text in found)
    if not TAKEN[name]:
        return
    case = first_case(name)
    (config, *_) = configs(family, case)
    assert not family.refusals(case, DEVICE, config)
    innermost = config
    while getattr(innermost, "config", None) is not None:
        innermost = innermost.config
    for field in (
        "num_warps",
        "block_m",
        "block_n",
        "block_k",
        "block_c",
        "block_p",
        "block_pixels",
        "block_n_main",
    ):
        if field in {each.name for each in fields(innermost)}:
            for value in (0, 3, 1 << 20):
                texts = _refusals_against(family, case, config, field, value)
                assert any(field in text and str(value) in text for text in texts), (field, value)


def _refusals_against(family, case, config, field, value):
    """Returns why a configuration with another value is refused, made or not."""
    try:
        wrong = _with(config, field, value)
    except LaunchError as error:
        return [str(error)]
    return [each_.text for each_ in family.refusals(case, DEVICE, wrong) if each_.in_key]


def _with(config, field, value):
    inner = getattr(config, "config", None)
    if inner is None:
        return replace(config, **{field: value})
    return replace(config, config=_with(inner, field, value))


@where_kernels_run
@pytest.mark.skipif(not IS_INTERPRETED, reason="a GPU takes other configurations")
@pytest.mark.parametrize("name", [name + "-" for name in BY_ID])
def test_as_many_cases_are_taken_as_before(name):
    name = name[:-1]
    assert COUNTS.get(name, counted(name)) == counted(name), TAKEN[name]


def counted(name):
    """How many problems a family takes in some dtypes, and how many epilogues of the first one."""
    family = BY_ID[name]
    found = [
        sum(
            not refusals_of(family, case_of(family, problem, dtype))
            for problem in PROBLEMS.values()
        )
        for dtype in (HALF, torch.float32, torch.int8)
    ]
    if family.direction == "fprop" and TAKEN[name]:
        case = first_case(name)
        cases = [replace(case, epilogue=spec) for spec in EPILOGUES.values()]
        found.append(sum(not refusals_of(family, each_) for each_ in cases))
    return " ".join(map(str, found))


#: Problems that families take in float16, float32 and int8, and epilogues.
COUNTS: dict[str, str] = {
    "fprop-gemm": "62 62 62 15",
    "fprop-packed": "32 32 32 15",
    "fprop-gather": "11 0 0 15",
    "fprop-col2im": "14 0 0 15",
    "fprop-depthwise": "6 6 6 15",
    "fprop-merged": "6 6 6 12",
    "fprop-direct": "63 63 63 15",
    "dgrad-gemm": "63 63 0",
    "dgrad-as_fprop": "18 18 0",
    "dgrad-patches": "5 5 0",
    "dgrad-depthwise": "6 6 0",
    "dgrad-merged": "6 6 0",
    "dgrad-direct": "63 63 0",
    "wgrad-wgrad": "62 0 0",
    "wgrad-packed": "32 0 0",
    "wgrad-swapped": "13 0 0",
    "wgrad-depthwise_wgrad": "6 6 0",
}
