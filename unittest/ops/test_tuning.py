"""Tuning without a GPU: what is recorded of models, the command, compiling, tables from sweeps."""

from __future__ import annotations

import collections
import concurrent.futures
import copy
import functools
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import textwrap
import threading
import time

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from triton_ext.host import capabilities
from triton_ext.ops import tuning
from triton_ext.ops.core.device import Device
from triton_ext.ops.core.planner import make_plan
from triton_ext.ops.core.tables import (
    Entry,
    Table,
    encode,
    kind_of,
    lookup,
    read_table,
    shipped_path,
)
from triton_ext.ops.tuning import measure, runs, store
from triton_ext.ops.tuning.collect import parse_shape
from triton_ext.ops.tuning.measure import make_tensors
from triton_ext.ops.tuning.store import write_table
from triton_ext.tools import cli
from tuning_fakes import GPU, MadeUpClock

IM2COL = capabilities()["im2col"]
GLUON = capabilities()["im2col-gluon"]
needs_gluon = pytest.mark.skipif(not GLUON.available, reason=GLUON.reason)
needs_im2col = pytest.mark.skipif(not IM2COL.available, reason=IM2COL.reason)
HALF = torch.float16
H200 = Device(132, (9, 0), 232448, "NVIDIA H200")


# ---- What is recorded --------------------------------------------------------------------------


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, 2, 1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1, groups=2, bias=False),
        torch.nn.Conv2d(32, 32, 3, padding=1, groups=2, bias=False),
        torch.nn.ConvTranspose2d(32, 16, 4, 2, 1, output_padding=1),
    ).half()


def texts(calls) -> list[str]:
    return [str(case) for case in calls]


FORWARD = [
    "fprop 2x16x16x16 -> 32 k3x3 s2x2 float16",
    "fprop 2x32x8x8 -> 32 k3x3 g2 float16",
    "dgrad 2x16x17x17 -> 32 k4x4 s2x2 float16",
]
BACKWARD = [
    "fprop 2x16x17x17 -> 32 k4x4 s2x2 float16",
    "wgrad 2x16x17x17 -> 32 k4x4 s2x2 float16",
    "dgrad 2x32x8x8 -> 32 k3x3 g2 float16",
    "wgrad 2x32x8x8 -> 32 k3x3 g2 float16",
    "wgrad 2x16x16x16 -> 32 k3x3 s2x2 float16",
]


@pytest.mark.parametrize("converted", [False, True], ids=["torch's", "ours"])
def test_a_models_convolutions_are_recorded_once_each(converted, capsys):
    made = model()
    if converted:
        from triton_ext import nn

        nn.convert(made)
    x = torch.randn(2, 16, 16, 16).half().to(memory_format=torch.channels_last)
    state = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    assert texts(tuning.collect(made, (x,))) == texts(tuning.collect(made, x)) == FORWARD
    calls = tuning.collect(made, {"input": x}, training=True)
    assert texts(calls) == FORWARD + BACKWARD
    # Only the backward's kernel wants every output channel count.
    assert calls.refused == {}
    assert all(parameter.grad is None for parameter in made.parameters())
    assert all(torch.equal(state[name], tensor) for name, tensor in made.state_dict().items())


def test_a_model_that_no_fake_tensor_passes_is_run():
    class Reads(torch.nn.Conv2d):
        def forward(self, x):
            y = super().forward(x)
            return y * y.abs().max().item()

    made, x = Reads(8, 16, 3), torch.randn(1, 8, 6, 6)
    with pytest.raises(Exception, match="_local_scalar_dense"):
        tuning.collect(made, (x,))
    assert len(tuning.collect(made, (x,), training=True, fake=False).cases) == 1
    assert made.weight.grad is None


class Stateful(torch.nn.Module):
    """Everything that a run for real changes."""

    def __init__(self, fails):
        super().__init__()
        self.convolution = torch.nn.Conv2d(8, 16, 3)
        self.norm = torch.nn.BatchNorm2d(16)
        self.fails = fails
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        y = torch.nn.functional.dropout(self.norm(self.convolution(x)))
        self.mean = self.mean + y.detach().mean(dim=(0, 2, 3))
        if self.fails:
            raise RuntimeError("the model's own")
        return y


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_for_real_leaves_all_as_it_was(fails, training):
    made, x = Stateful(fails), torch.randn(2, 8, 6, 6, requires_grad=True)
    weight, mean = made.convolution.weight, made.mean
    kept = weight.grad = torch.full_like(weight, 3.0)
    state = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    drawn = torch.get_rng_state()
    if fails:
        with pytest.raises(RuntimeError, match="the model's own"):
            tuning.collect(made, x, training=training, fake=False)
    else:
        assert tuning.collect(made, x, training=training, fake=False).cases
    assert weight.grad is kept
    assert torch.equal(kept, torch.full_like(weight, 3.0))
    assert made.convolution.bias.grad is None
    assert x.grad is None
    assert made.mean is mean
    assert all(torch.equal(state[name], tensor) for name, tensor in made.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


class Grows(torch.nn.Module):
    """A buffer takes the shape of the output."""

    def __init__(self, fails):
        super().__init__()
        self.convolution, self.fails = torch.nn.Conv2d(8, 16, 3), fails
        self.register_buffer("cache", torch.empty(0))

    def forward(self, x):
        y = self.convolution(x)
        self.cache.resize_(y.shape).copy_(y.detach())
        if self.fails:
            raise RuntimeError("the model's own")
        return y


def test_a_run_for_real_of_a_scripted_model():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16))
            self.register_buffer("mean", torch.zeros(1))

        def forward(self, x):
            y = self.layers(x)
            self.mean = self.mean + y.mean()
            return y

    made = torch.jit.script(Counts())
    state = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    assert len(tuning.collect(made, torch.randn(2, 8, 6, 6), fake=False).cases) == 1
    assert all(torch.equal(state[name], tensor) for name, tensor in made.state_dict().items())


def test_a_run_for_real_of_buffers_without_a_fixed_shape():
    x = torch.randn(2, 8, 6, 6)
    lazy = torch.nn.Sequential(torch.nn.LazyConv2d(16, 3), torch.nn.LazyBatchNorm2d())
    assert tuning.collect(lazy, x, fake=False).cases
    grows = Grows(fails=False)
    assert tuning.collect(grows, x, fake=False).cases
    assert grows.cache.shape == (0,)
    with pytest.raises(RuntimeError, match="the model's own"):
        tuning.collect(Grows(fails=True), x, fake=False)


def test_a_run_for_real_between_forward_and_backward():
    made = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16))
    x = torch.randn(2, 8, 6, 6)
    made.eval()
    total = made(x).sum()
    made.train()
    assert tuning.collect(made, x, fake=False).cases
    total.backward()
    assert made[0].weight.grad is not None


LAYER, IMAGE = torch.nn.Conv2d(8, 8, 3), torch.zeros(1, 8, 8, 8)
CASE = {"direction": "fprop", "problem": tuning.parse_shape("1x8x8x8_8_k3"), "dtype": torch.float16}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tuning.collect(len, IMAGE), TypeError, "expected a torch.nn.Module, got builtin_"),
        (lambda: tuning.collect(None, IMAGE), TypeError, "Module, got NoneType; record.. rec"),
        (lambda: tuning.collect(LAYER, None), TypeError, "must be a tensor, a seq.*, got NoneType"),
        (lambda: tuning.collect(LAYER, "x"), TypeError, "must be a tensor, a sequence.*, got str"),
        (
            lambda: tuning.warmup_steps("3"),
            TypeError,
            "^warmup_steps: steps is '3': expected an int",
        ),
        (lambda: tuning.warmup_steps(True), TypeError, "steps is True: expected an int"),
        (lambda: tuning.warmup_steps(-1), ValueError, "steps is -1: expected 0 or more"),
        (lambda: tuning.warmup_steps(1, round=3), TypeError, "round: expected an option of tune"),
        (lambda: tuning.warmup_steps(1, rounds=0), ValueError, "^warmup_steps: rounds is 0: expec"),
        (lambda: tuning.warmup_steps(1, seconds="1"), ValueError, "^warmup_steps: seconds is '1'"),
        (
            lambda: tuning.warmup_steps(1, seconds=True),
            ValueError,
            "seconds is True: expected a po",
        ),
        (lambda: tuning.warmup_steps(1, save=3), TypeError, "^warmup_steps: save is 3: expected T"),
        (lambda: tuning.tune([], save=None), TypeError, "^tune: save is None: expected True, Fal"),
        (lambda: tuning.tune([], seconds="5"), ValueError, "^tune: seconds is '5': expected a pos"),
        (lambda: tuning.warmup_steps(1, device="xpu"), ValueError, "'xpu': expected a GPU, or a c"),
        (lambda: tuning.warmup_steps(1, device="gpu"), ValueError, "^warmup_steps: device is 'gpu"),
        (lambda: tuning.tune(3), TypeError, "tune: expected cases, such as what .*, got int"),
        (lambda: tuning.tune("abc"), TypeError, "tune: expected cases, such as what .*, got str"),
        (lambda: tuning.tune([LAYER]), TypeError, "such as what .*, got a Conv2d among them"),
        (
            lambda: tuning.tune([], device="gpu"),
            ValueError,
            "tune: device is 'gpu': Expected one of",
        ),
        (
            lambda: tuning.tune([], device="cuda:99", gpu=H200),
            ValueError,
            r"^tune: device is 'cuda:99': torch sees \d+ GPUs$",
        ),
        (
            lambda: tuning.tune([tuning.Case(**CASE)], device="cpu", gpu=H200),
            ValueError,
            "^tune: device is 'cpu': expected a GPU, or a clock$",
        ),
        (
            lambda: tuning.tune([], rounds=0),
            ValueError,
            "rounds is 0: expected an int of at least 1",
        ),
        (lambda: tuning.tune([], jobs=0), ValueError, "jobs is 0: expected an int of at least 1"),
        (lambda: tuning.use(None), TypeError, "use: expected the path of a file, got NoneType"),
        (lambda: tuning.parse_shape(3), TypeError, "shape: expected a text, got int"),
        (
            lambda: tuning.Case(**CASE | {"direction": "up"}),
            TypeError,
            "is 'up': expected fprop or",
        ),
        (
            lambda: tuning.Case(**CASE | {"dtype": "half"}),
            TypeError,
            "dtype is 'half': expected a d",
        ),
        (lambda: tuning.Case(**CASE | {"problem": 3}), TypeError, "problem is 3: expected a ConvP"),
        (
            lambda: tuning.Case(**CASE, out_dtype=3),
            TypeError,
            "out_dtype is 3: expected a dtype, or",
        ),
        (
            lambda: tuning.candidates(device=None, **CASE),
            TypeError,
            "candidates: device is None: expected a Device",
        ),
    ],
)
def test_what_is_of_another_type_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_arrays_of_numpy_are_named():
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros((1, 8, 8, 8), numpy.float32)
    for inputs in (array, (array,), {"input": array}):
        with pytest.raises(
            TypeError, match=r"^collect: .*ndarray of numpy; torch\.from_numpy makes"
        ):
            tuning.collect(LAYER, inputs)


def test_what_no_kernel_takes_has_a_reason():
    made = torch.nn.Conv2d(8, 8, 1, stride=9)
    calls = tuning.collect(made, (torch.randn(1, 8, 30, 30),))
    assert calls.cases == []
    assert "TMA supports 1..8" in next(iter(calls.refused.values()))


def test_another_dtype_instead_of_the_models():
    calls = tuning.collect(torch.nn.Conv1d(8, 16, 3), (torch.randn(1, 8, 30),), training=True)
    (refused,) = calls.refused
    assert refused.direction == "wgrad"
    halved = calls.in_dtype(torch.bfloat16)
    assert {case.dtype for case in halved.cases} == {torch.bfloat16}
    assert [case.direction for case in halved.cases] == ["fprop", "wgrad"]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.norm, self.last = torch.nn.BatchNorm2d(16), torch.nn.BatchNorm2d(16)
        self.alone = torch.nn.Conv2d(16, 32, 3)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        return self.alone(torch.relu(self.last(self.second(y)) + x))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "options", [{"fold": True}, {"norms": True}, {"fold": True, "norms": True}]
)
def test_a_fake_run_has_the_calls_of_a_run(options):
    from triton_ext import nn

    torch.manual_seed(0)
    model = nn.convert(Block().eval().half(), report=False, **options)
    x = torch.randn(2, 16, 8, 8).half().to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = copy.deepcopy(model)(x)
    faked = list(tuning.collect(model, x))
    assert [case.epilogue_class for case in faked] == (
        ["", "residual", ""] if "fold" in options else ["", ""]
    )
    with torch.no_grad():
        assert torch.equal(model(x), expected)  # nothing fake was kept
    run = tuning.collect(model, x, fake=False)
    assert [case.key(132) for case in faked] == [case.key(132) for case in run]


def test_epilogues_are_recorded():
    from triton_ext import ops

    x = torch.empty(2, 16, 8, 8, dtype=torch.float16, device="meta")
    x = x.to(memory_format=torch.channels_last)
    w = torch.empty(32, 16, 3, 3, dtype=torch.float16, device="meta")
    y = torch.empty(2, 32, 8, 8, dtype=torch.float16, device="meta")
    with torch.no_grad(), tuning.record() as calls:
        ops.conv2d(x, w, padding=1, residual=y, activation="relu")
        ops.conv2d(x, w, padding=1)
        ops.conv2d(x, w, padding=1, residual=y[:, :, :1, :1])
    classes = [case.epilogue_class for case in calls.cases]
    assert classes == ["residual", "", "image-residual"]
    per_image = make_tensors(calls.cases[2], torch.device("meta"))[2].residual
    assert per_image.shape == (2, 32, 1, 1)
    assert calls.cases[0].epilogue.activation == "relu"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32x64x56x56_128_k3x3_s2x2", (32, 64, 128, (56, 56), (3, 3), (2, 2), ((1, 1),) * 2, 1)),
        (
            "32,64, 56,56 -> 128 k3x3  s2x2",
            (32, 64, 128, (56, 56), (3, 3), (2, 2), ((1, 1),) * 2, 1),
        ),
        ("1x8x9x9->16 k3 d2 g4", (1, 8, 16, (9, 9), (3, 3), (1, 1), ((2, 2),) * 2, 4)),
        ("1x8x9_16_k3", (1, 8, 16, (9,), (3,), (1,), ((1, 1),), 1)),
        ("1x8x9x9_16_k3_d2_g4", (1, 8, 16, (9, 9), (3, 3), (1, 1), ((2, 2),) * 2, 4)),
        ("1x8x9x9_16_k3x5_p0-1x2", (1, 8, 16, (9, 9), (3, 5), (1, 1), ((0, 1), (2, 2)), 1)),
        ("2x8x4x9x9_16_k1x3x3_p0", (2, 8, 16, (4, 9, 9), (1, 3, 3), (1,) * 3, ((0, 0),) * 3, 1)),
    ],
)
def test_shapes_as_texts(text, expected):
    p = parse_shape(text)
    assert expected == (
        p.batch, p.in_channels, p.out_channels, p.input_size, p.filter_size, p.stride, p.padding,
        p.groups,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", "3x3", "1x8x9x9_16", "1x8x9x9_16_k3x3x3", "1x8_16_k3", "x", "1x8x9_16_k3_g3",
     "1x8x9_16_k3_g0", "0x8x9_16_k3", "1x8x9_0_k3", "1x8x9_16_k0", "1x8x9_16_k3_s0"],
)  # fmt: skip
def test_texts_that_are_no_shapes(text):
    with pytest.raises(ValueError, match="shape"):
        parse_shape(text)


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        ("1x8x9_16", "NxCixSIZE_Co_kTAPS"),
        ("1,8,9", "N,Ci,SIZE -> Co kTAPS"),
        ("1x8x9 -> 16", "N,Ci,SIZE -> Co kTAPS"),
    ],
)
def test_errors_show_the_grammar_that_a_text_has(text, grammar):
    with pytest.raises(ValueError, match=f"shape '{re.escape(text)}': expected {grammar}"):
        parse_shape(text)


def test_the_suites_names_are_such_texts():
    from benchmarks.suites import select_layers

    for layer in select_layers("all", None):
        assert parse_shape(layer.name) == layer.problem


# ---- Candidates --------------------------------------------------------------------------------


def innermost(config):
    """Returns the tile configuration of a choice."""
    while hasattr(config, "config"):
        config = config.config
    return config


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_candidates_begin_with_the_models_choice_and_are_few(direction):
    from triton_ext.ops.core.device import assumed_device

    from benchmarks.suites import select_layers

    for layer in select_layers("all", None):
        made = tuning.candidates(layer.problem, direction, torch.float16, H200)
        assert len(made) <= 6
        assert len(set(made)) == len(made)
        if len(made) < 2:  # there is nothing to choose
            continue
        case = tuning.Case(direction=direction, problem=layer.problem, dtype=torch.float16)
        with assumed_device(Device(132, (9, 0), 232448)):
            plan = make_plan(case, torch.device("meta"))
        assert innermost(made[0]) == plan.config


def tile_of(config) -> tuple:
    """Returns the kernel of a choice and how large its tile is."""
    inner = innermost(config)
    names = (
        *("block_m", "block_n", "block_co", "block_ci", "taps", "rows", "rows_from_x"),
        *("consumers", "ping_pong", "block_n_main", "block_n_rest", "main_blocks", "rest_blocks"),
    )
    sizes = [getattr(inner, name) for name in names if hasattr(inner, name)]
    return type(config).__name__, type(inner).__name__, *sizes


@needs_gluon
@pytest.mark.parametrize(
    ("direction", "shape"),
    [
        ("fprop", "64x3072x7x7_768_k1x1"),
        ("fprop", "32x1024x14x14_256_k1x1"),
        ("fprop", "1x512x512x512_256_k3x3"),
        ("dgrad", "2x640x64x64_640_k3x3_s2x2"),
        ("wgrad", "2x1280x32x32_1280_k3x3_s2x2"),
        ("wgrad", "64x3072x7x7_768_k1x1"),
    ],
)
@pytest.mark.parametrize("count", [6, 10])
def test_candidates_are_of_both_kernels_and_of_several_tiles(direction, shape, count):
    problem = parse_shape(shape)
    made = tuning.candidates(problem, direction, torch.float16, H200, count=count)
    assert len(made) == count
    tiles = collections.Counter(map(tile_of, made))
    assert max(tiles.values()) <= count // 3
    assert len({tile[1] for tile in tiles}) == 2


def test_of_one_tile_more_are_taken_where_there_are_no_others():
    problem = parse_shape("1x8x512x512_8_k1x1")
    made = tuning.candidates(problem, "wgrad", torch.float16, H200, count=100)
    assert len(made) > 33
    ranked = tuning.candidates(problem, "wgrad", torch.float16, H200, count=10)
    assert [config for config in made if config in ranked] == ranked


@pytest.mark.slow
@needs_im2col
def test_candidates_are_compiled_into_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    cases = [
        tuning.Case(direction=d, problem=parse_shape("2x64x14x14_64_k3x3"), dtype=torch.float16)
        for d in ("fprop", "dgrad", "wgrad")
    ]
    with tuning.CompilePool(1) as pool:
        pool.start()
        futures = [
            pool.submit(case, tuning.candidates(case.problem, case.direction, HALF, H200)[0], H200)
            for case in cases
        ]
        bad = pool.submit(cases[0], 3, H200)
        results = [future.result() for future in futures]
        assert results == [""] * 3
        assert "Error" in bad.result()
    assert len(list(tmp_path.rglob("*.cubin"))) >= 3


@pytest.mark.slow
def test_compiling_processes_import_nothing_from_the_current_folder(tmp_path, monkeypatch):
    for name in ("base64", "json", "pickle", "torch", "triton_ext"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine')")
    monkeypatch.chdir(tmp_path)
    case = tuning.Case(
        direction="fprop", problem=parse_shape("2x64x14x14_64_k3x3"), dtype=torch.float16
    )
    with tuning.CompilePool(1) as pool:
        said = pool.submit(case, 3, H200).result()
    # The job itself makes no sense, which the process has found out.
    assert "Error: " in said
    assert "not mine" not in said


def test_processes_outlast_the_thread_that_starts_the_pool(monkeypatch):
    started = []

    def begin(pool):
        started.append(threading.current_thread().name)

    monkeypatch.setattr(measure.CompilePool, "_begin", begin)
    with tuning.CompilePool(2) as pool:
        pool.start()
    assert len(started) == 2
    assert all(name.startswith("compile") for name in started)


@pytest.mark.parametrize("size", [1, 1_000_000])  # a pipe holds 65536 bytes
def test_processes_end_while_they_have_a_job(size, monkeypatch):
    silent = [sys.executable, "-c", "import sys; sys.stdin.readline(1); sys.stdin.read(1)"]
    monkeypatch.setattr(measure, "command", lambda *_: silent)
    for _ in range(5):
        with tuning.CompilePool(2) as pool:
            futures = [pool.submit("x" * size, None, None) for _ in range(2)]
            # Under load one may have ended before the other begins.
            while not all(future.running() or future.done() for future in futures):
                time.sleep(0.001)
        for future in futures:
            assert re.match("the compiling process(es)? .*ended", future.result(0))


# ---- Timing ------------------------------------------------------------------------------------


class Counting:
    """A clock for functions that are numbers."""

    def __init__(self):
        self.turns = []

    def prepare(self, function):
        return function()

    def measure(self, value):
        self.turns.append(value)
        return value


def test_rounds_are_interleaved_and_the_hopeless_left_out():
    clock = Counting()
    functions = [lambda value=value: value for value in (1.0, 1.1, 5.0)]
    assert measure.interleaved(functions, clock, 4) == [1.0, 1.1, 5.0]
    assert clock.turns == [1.0, 1.1, 5.0, 5.0, 1.1, 1.0, 1.1, 1.0, 1.0, 1.1]


@pytest.mark.parametrize("count", range(1, 8))
def test_every_other_measurement_being_longer_favours_no_candidate(count):
    class Alternating(Counting):
        def measure(self, value):
            return super().measure(value) + len(self.turns) % 2

    # 3.6 is 1.2 times what is fastest, which is nearly left out.
    functions = [lambda: 99.0, *[lambda: 3.0] * count, lambda: 3.6]
    hopeless, *times, slow = measure.interleaved(functions, Alternating(), runs.ROUNDS)
    assert times == [3.5] * count
    assert (hopeless, slow) == (99.5, 4.1)


def test_progress_is_lines_where_there_is_no_terminal(capsys):
    with runs.progress_of(True, 6, 2) as (compiled, tuned):
        compiled()
        tuned("a")
        tuned("b")
    assert capsys.readouterr().err.splitlines() == [
        "2 convolutions, 6 configurations to compile",
        "[1/2] a",
        "[2/2] b",
    ]
    with runs.progress_of(False, 1, 1) as (_, tuned):
        tuned("x")
    assert capsys.readouterr().err == ""


def test_progress_is_bars_on_a_terminal(capsys):
    pytest.importorskip("rich")
    import io

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with runs.progress_of(True, 2, 1, stream) as (compiled, tuned):
        compiled()
        tuned("fprop [1x1]")
    assert "fprop [1x1]" in stream.getvalue()
    assert "measuring" in stream.getvalue()


# ---- The command -------------------------------------------------------------------------------


def test_without_a_gpu_the_command_says_so(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert cli.main(["tune", "--shapes", "1x8x9x9_16_k3"]) == 2
    assert "error: there is no GPU to measure on" in capsys.readouterr().err


@pytest.fixture
def with_a_gpu(monkeypatch, tmp_path):
    """Lets the command come as far as what it would tune; returns that."""
    from triton_ext.ops.tuning import command

    asked = []

    def tune(cases, **options):
        asked.extend(cases)
        return tuning.Report(GPU, (), 0.0)

    class Pool:
        def __init__(self, jobs):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def start(self):
            pass

    monkeypatch.setattr(command, "tune", tune)
    monkeypatch.setattr(command, "CompilePool", Pool)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))
    return asked


MODEL = """
import torch
model = torch.nn.Conv2d(8, 16, 3, padding=1)
example_inputs = torch.randn(2, 8, 16, 16)
"""
BUILD = """
import torch
import beside
def build():
    return torch.nn.Conv2d(8, 16, 3, padding=1), (torch.randn(2, 8, 16, 16),)
"""


@pytest.mark.parametrize("text", [MODEL, BUILD], ids=["names", "build"])
def test_a_models_file(text, with_a_gpu, tmp_path, capsys):
    path = tmp_path / "my_model.py"
    path.write_text(text)
    (tmp_path / "beside.py").write_text("")
    assert cli.main(["tune", str(path), "--dtype", "bfloat16", "--training"]) == 0
    assert [str(case) for case in with_a_gpu] == [
        "fprop 2x8x16x16 -> 16 k3x3 bfloat16",
        "wgrad 2x8x16x16 -> 16 k3x3 bfloat16",
    ]
    with_a_gpu.clear()
    out = tmp_path / "out.json"
    assert cli.main(["tune", str(path), "--out", str(out)]) == 0
    assert [str(case) for case in with_a_gpu] == ["fprop 2x8x16x16 -> 16 k3x3 float32"]
    assert read_table(out) == Table(GPU)


def test_shapes_and_directions(with_a_gpu, capsys):
    shapes = ["1x64x9x9_16_k3", "1x8x30x30_8_k1_s9"]
    assert cli.main(["tune", "--shapes", *shapes, "--direction", "dgrad", "fprop"]) == 0
    assert [str(case)[:5] for case in with_a_gpu] == ["fprop", "dgrad", "dgrad"]
    assert "not tuned: fprop 1x8x30x30" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a model's file, --shapes or --merge"),
        (["missing.py"], "missing.py: there is no such file"),
        (["."], ".: is a folder: expected a model's Python file"),
        (["--shapes", "3x3"], "shape '3x3': expected NxCixSIZE"),
        (["--shapes", "1x8x9x9_16_k3", "--dtype", "float"], "dtype 'float'"),
        (["--merge", "missing.json"], "missing.json: there is no such file"),
        (["--merge", "a", "--shapes", "b"], "--merge takes files only"),
        (["empty.py"], "defines neither model and example_inputs nor build"),
    ],
)
def test_wrong_calls_are_named(arguments, message, with_a_gpu, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("empty.py").write_text("")
    assert cli.main(["tune", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = 3\nexample_inputs = 3", "the model is a int: expected a Module"),
        ("def build():\n    return 3", "build() returned int: expected the model and its"),
        ("x = 1\nmodel = x / 0", "line 2: ZeroDivisionError: division by zero"),
        ("model = (", "line 1: SyntaxError: "),
        (
            MODEL.replace("(2, 8,", "(2, 9,"),
            "the model does not run on its example_inputs: Runtime",
        ),
    ],
)
def test_a_models_file_that_cannot_be_used(text, message, with_a_gpu, capsys, tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(text)
    assert cli.main(["tune", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_messages_of_commands_are_cut_and_escaped(with_a_gpu, capsys, tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(MODEL + "raise ValueError('\\33[31m' + 'A' * 1000000)")
    red = "\x1b[31m" + "A" * 100_000
    for words in (
        ["tune", str(path)],
        ["tune", "--dry-run", "--shapes", red],
        ["tune", red[:100]],
        ["tune", "--merge", red[:100]],
        ["explain", red],
        ["explain", "1,8,9,9 -> 8 k3", "--dtype", red],
    ):
        assert cli.main(words) == 2
        told = capsys.readouterr().err
        assert "\\x1b[31m" in told
        assert told.rstrip("\n").isprintable()
        assert len(told) < 3000


@pytest.mark.parametrize("value", ["None", "3", "'text'"])
def test_example_inputs_are_checked_before_the_model_is_run(value, with_a_gpu, capsys, tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(f"{MODEL}example_inputs = {value}")
    assert cli.main(["tune", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"triton-ext tune: error: {path}: example_inputs must be a tensor, a s")
    assert told.count("\n") == 1


def test_a_scripted_models_file(with_a_gpu, capsys, tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(MODEL + "model = torch.jit.script(model)")
    assert cli.main(["tune", str(path)]) == 0
    assert texts(with_a_gpu) == ["fprop 2x8x16x16 -> 16 k3x3 float32"]


def test_a_models_file_beside_the_user(with_a_gpu, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for text, message in (
        ("x = 1\nraise ValueError('x')", "m.py: line 2: ValueError: x"),
        ("x = 1\ny = (", "m.py: line 2: SyntaxError: "),
        ("import sys\nsys.exit('no data')", "m.py: line 2: SystemExit: no data"),
    ):
        (tmp_path / "m.py").write_text(text)
        assert cli.main(["tune", "m.py"]) == 2
        assert message in capsys.readouterr().err


def test_a_models_file_may_take_its_folder_out_of_the_path(with_a_gpu, tmp_path):
    from triton_ext.ops.tuning.command import load_model

    file = tmp_path / "model.py"
    file.write_text(f"import sys\nsys.path.remove({str(tmp_path.resolve())!r})\n{MODEL}")
    before = list(sys.path)
    model, _ = load_model(file)
    assert isinstance(model, torch.nn.Module)
    assert sys.path == before


def test_a_models_file_has_a_module(with_a_gpu, tmp_path):
    (tmp_path / "m.py").write_text(
        textwrap.dedent("""
            from __future__ import annotations
            import copy, dataclasses, pickle, torch

            @dataclasses.dataclass
            class Config:
                width: int = 4

            class Model(torch.nn.Conv2d):
                pass

            def build():
                model = pickle.loads(pickle.dumps(Model(3, Config().width, 3).half()))
                return model, torch.randn(1, 3, 8, 8).half()
        """)
    )
    assert cli.main(["tune", str(tmp_path / "m.py")]) == 0
    assert texts(with_a_gpu) == ["fprop 1x3x8x8 -> 4 k3x3 float16"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no_such_model.py"], "no_such_model.py: there is no such file"),
        (["--shapes", "1x8x9x9"], "shape '1x8x9x9': expected NxCixSIZE_Co_kTAPS"),
        (["--shapes", "1x8x9x9_16_k3", "--dtype", "bf16"], "dtype 'bf16': expected one of"),
    ],
)
def test_words_are_checked_before_a_gpu_is_searched_for(words, message, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("searched for a GPU"))
    assert cli.main(["tune", *words]) == 2
    assert f"triton-ext tune: error: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "cannot be written: is a folder, not a file"),
        ("file/new/out.json", "cannot be written: {folder}/file is no folder"),
        ("new/out.json", "cannot be written: nothing can be written to {folder}"),
    ],
)
def test_files_are_checked_before_a_gpu_is_searched_for(
    name, message, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("searched for a GPU"))
    (tmp_path / "file").touch()
    out = tmp_path / name
    # Who runs this may be allowed to write anywhere.
    monkeypatch.setattr(store.os, "access", lambda path, mode: path != tmp_path)
    assert cli.main(["tune", "--shapes", "1x8x9x9_16_k3", "--out", str(out)]) == 2
    told = f"triton-ext tune: error: {out}: {message.format(folder=tmp_path)}\n"
    assert capsys.readouterr().err == told
    assert not (tmp_path / "new").exists()


def test_choices_that_would_go_nowhere_are_not_measured(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("searched for a GPU"))
    words = ["tune", "--shapes", "1x8x9x9_16_k3"]
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path / "file"))
    assert cli.main(words) == 2
    told = f"{tmp_path}/file: choices cannot be kept: {tmp_path}/file is no folder; set TRITON_EXT"
    assert f"triton-ext tune: error: {told}" in capsys.readouterr().err
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", "~no_such_user/tables")
    assert cli.main(words) == 2
    assert "no such home folder; set TRITON_EXT_TUNING_DIR" in capsys.readouterr().err


def test_choices_that_the_users_table_cannot_take_go_to_the_file(
    with_a_gpu, monkeypatch, capsys, tmp_path
):
    from triton_ext.ops.tuning import command, runs

    clock = MadeUpClock(lambda trial: 1.0)
    there = {"gpu": H200, "device": "cpu", "clock": clock, "compiler": None, "seconds": 1e-9}
    kept = []

    def tune(cases, **options):
        kept.append(options["save"])
        return runs.tune(cases, **options | there)

    monkeypatch.setattr(command, "tune", tune)
    out = tmp_path / "out.json"
    words = ["tune", "--shapes", "1x64x9x9_16_k3", "--out", str(out), "--quiet"]
    cli.main(words)
    assert "kept in " in capsys.readouterr().out
    locked = tmp_path / "locked"
    locked.mkdir()
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(locked))
    monkeypatch.setattr(store.os, "access", lambda path, mode: path != locked)
    cli.main(words)
    told = capsys.readouterr()
    assert "triton-ext tune: warning: " in told.err
    assert f"set TRITON_EXT_TUNING_DIR; {out} alone is written" in told.err
    assert "kept in " not in told.out
    assert read_table(out) is not None
    assert kept == [True, False]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        *(("--time-limit", value, "a positive number of seconds") for value in ("0", "nan", "1m")),
        *((option, "0", "an integer of at least 1") for option in ("--jobs", "--candidates")),
        ("--rounds", "1.5", "an integer of at least 1"),
    ],
)
def test_numbers_are_checked_before_a_gpu_is_searched_for(
    option, value, message, monkeypatch, capsys
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("searched for a GPU"))
    with pytest.raises(SystemExit) as end:
        cli.main(["tune", "--shapes", "1x8x9x9_16_k3", option, value])
    assert end.value.code == 2
    assert f"argument {option}: expected {message}, found '{value}'" in capsys.readouterr().err


def test_what_the_time_leaves_is_an_exit_status(with_a_gpu, monkeypatch, capsys, tmp_path):
    from triton_ext.ops.tuning import command, runs

    class Stuck(command.CompilePool):
        def submit(self, case, config, machine):
            return concurrent.futures.Future()

    there = {"gpu": H200, "device": "cpu", "clock": MadeUpClock(lambda trial: 1.0)}
    monkeypatch.setattr(command, "tune", functools.partial(runs.tune, **there))
    monkeypatch.setattr(command, "CompilePool", Stuck)
    shapes = ("1x64x9x9_16_k3", "1x64x9x9_32_k3")
    words = ["tune", "--shapes", *shapes, "--time-limit", "0.05", "--quiet"]
    assert cli.main(words) == 1
    told = capsys.readouterr().out
    assert "0 measured, 0 known before, 0 candidates failed, 2 not reached in the time" in told
    assert told.count(": no time left") == 2


@pytest.fixture
def dry_run(monkeypatch, capsys, tmp_path):
    """Runs ``tune --dry-run`` where there is no GPU, and nothing may be compiled; returns lines."""
    from triton_ext.ops.tuning import command

    monkeypatch.setattr(command, "tune", None)
    monkeypatch.setattr(command, "CompilePool", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))
    tuning.reload()

    def run(*words):
        assert cli.main(["tune", "--dry-run", *words]) == 0
        assert not list(tmp_path.glob("*.v1.json"))
        return capsys.readouterr().out.splitlines()

    yield run
    tuning.reload()


def test_a_dry_run_lists_what_would_be_measured(dry_run, monkeypatch):
    words = ("--shapes", "32x64x56x56_128_k3x3", "--direction", "fprop", "wgrad", "--jobs", "4")
    *listed, total = dry_run(*words, "--candidates", "3")
    heads = [line for line in listed if not line.startswith(" ")]
    assert heads == [
        "fprop 32x64x56x56 -> 128 k3x3 bfloat16: 3 candidates",
        "wgrad 32x64x56x56 -> 128 k3x3 bfloat16: 3 candidates",
    ]
    for head, direction in zip(heads, ("fprop", "wgrad"), strict=True):
        first = listed.index(head) + 1
        configs = tuning.candidates(
            parse_shape("32x64x56x56_128_k3x3"), direction, torch.bfloat16, H200, count=3
        )
        for line, config in zip(listed[first : first + 3], configs, strict=True):
            kind, *fields = line.split()
            assert kind == kind_of(config)
            assert all("=" in field for field in fields)
            assert fields
    assert total == (
        "2 of 2 convolutions to measure, 6 configurations to compile, about 3 s with --jobs 4; "
        "for NVIDIA H200, which is assumed: there is no GPU"
    )


def test_a_dry_run_knows_what_was_measured(dry_run, monkeypatch, tmp_path):
    case = tuning.Case(
        direction="fprop", problem=parse_shape("32x64x56x56_128_k3x3"), dtype=torch.bfloat16
    )
    (config, *_) = tuning.candidates(case.problem, "fprop", case.dtype, H200)
    entry = Entry(
        kind=kind_of(config), config=encode(config), us=12.5, measured="2026-11-28T00:00:00Z",
        triton=importlib.metadata.version("triton"),
    )  # fmt: skip
    path = tmp_path / "shared.json"
    write_table(path, Table(H200.name, {case.key(H200.num_sms): entry.raw()}))
    tuning.use(path)
    words = ("--shapes", "32x64x56x56_128_k3x3", "--jobs", "1")
    known, total = dry_run(*words)
    assert known == f"{case}: 12.5 us (known)"
    assert total.startswith("0 of 1 convolutions to measure, 0 configurations to compile, about 0")
    assert dry_run(*words, "--force")[0] == f"{case}: 6 candidates"
    lookup.forget(added=True)


def test_a_dry_run_reads_models_and_refuses_files(dry_run, capsys, tmp_path):
    (tmp_path / "m.py").write_text(MODEL)
    assert dry_run(str(tmp_path / "m.py"))[0].startswith("fprop 2x8x16x16 -> 16 k3x3 float32: ")
    assert cli.main(["tune", "--dry-run", "--merge", "a.json"]) == 2
    assert "--merge takes files only" in capsys.readouterr().err
    assert cli.main(["tune", "--dry-run"]) == 2
    assert "expected a model's file, --shapes or --merge" in capsys.readouterr().err


def raw(us, day):
    return {"kind": "gemm", "config": {}, "us": us, "measured": f"2026-11-{day:02}", "triton": ""}


def test_files_are_merged(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path / "mine"))
    a, b, c = (tmp_path / f"{name}.json" for name in "abc")
    write_table(a, Table(GPU, {"x": raw(1.0, 1), "y": raw(2.0, 2)}))
    write_table(b, Table(GPU, {"x": raw(3.0, 3)}))
    write_table(c, Table("NVIDIA Other", {"z": raw(4.0, 4)}))
    expected = {"x": raw(3.0, 3), "y": raw(2.0, 2)}
    assert cli.main(["tune", "--merge", str(a), str(b), "--out", str(tmp_path / "d.json")]) == 0
    assert read_table(tmp_path / "d.json", GPU).entries == expected
    assert cli.main(["tune", "--merge", str(b), str(a), str(c)]) == 0
    (mine, other) = sorted((tmp_path / "mine").glob("*.json"), key=lambda path: len(path.name))
    assert read_table(mine, "NVIDIA Other").entries == {"z": raw(4.0, 4)}
    assert read_table(other, GPU).entries == expected
    assert cli.main(["tune", "--merge", str(a), str(c), "--out", str(tmp_path / "e.json")]) == 2
    assert "tables of one GPU" in capsys.readouterr().err
    assert cli.main(["tune", "--merge", str(a), "--out", str(tmp_path)]) == 2
    assert f"{tmp_path}: cannot be written: is a folder" in capsys.readouterr().err
    assert cli.main(["tune", "--merge", str(a), "--out", str(a / "f.json")]) == 2
    assert "f.json: cannot be written: " in capsys.readouterr().err


def test_the_help_needs_no_torch():
    code = textwrap.dedent("""
        import sys
        sys.modules["torch"] = None
        from triton_ext.tools import cli
        try:
            cli.main(["tune", "--help"])
        except SystemExit as end:
            assert end.code == 0
        sys.exit(cli.main(["tune", "--shapes", "1x8x9x9_16_k3"]))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "--merge" in done.stdout
    assert "error: it needs torch" in done.stderr


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "tuning.md"


def test_the_programs_of_the_page(tmp_path, capsys):
    from triton_ext.ops.tuning.command import load_model

    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (model_file,) = [block for block in blocks if "def build" in block]
    (program,) = [block for block in blocks if "tuning.collect" in block]
    (tmp_path / "m.py").write_text(model_file)
    assert texts(tuning.collect(*load_model(tmp_path / "m.py"))) == [
        "fprop 8x16x56x56 -> 32 k3x3 float16"
    ]
    if torch.cuda.is_available():
        pytest.skip("it would tune")
    exec(compile(program, str(PAGE), "exec"), {})
    assert "'fprop 8x64x28x28 -> 64 k3x3 float16'" in capsys.readouterr().out


# ---- From the table to the plan ----------------------------------------------------------------

FEW_CHANNELS = [
    *("32x3x224x224_64_k7x7_s2x2", "64x3x224x224_96_k4x4_s4x4_p0x0", "8x4x64x64_320_k3x3"),
    *("1x4x64x64_512_k3x3", "8x320x64x64_4_k3x3", "1x128x512x512_3_k3x3"),
    *("16x80x3000_512_k3", "8x64x16x56x56_64_k3x3x3", "64x192x28x28_192_k7x7_g192"),
]


@needs_gluon
@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_what_was_measured_is_what_plans_are_made_of(direction, monkeypatch, tmp_path):
    """Through the table, every candidate makes the plan that it made while it was measured."""
    from triton_ext.ops.core.device import assumed_device

    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_EXT_TUNING", raising=False)
    meta, met = torch.device("meta"), collections.Counter()
    for shape in FEW_CHANNELS:
        for dtype, measured_in in ((HALF, HALF), (torch.bfloat16, HALF)):
            case = tuning.Case(direction=direction, problem=parse_shape(shape), dtype=dtype)
            measured = tuning.Case(direction=direction, problem=case.problem, dtype=measured_in)
            found = tuning.candidates(case.problem, direction, dtype, H200, count=12)
            for config in found if len(found) > 1 else ():
                raw = {
                    "kind": kind_of(config), "config": encode(config), "us": 1.0,
                    "measured": "2026-11-22", "triton": "3.9.0",
                }  # fmt: skip
                lookup.forget(added=True)
                lookup.add(H200.name, {measured.key(132): json.loads(json.dumps(raw))}, "here")
                with assumed_device(H200):
                    tuning.reload()
                    given = make_plan(case, meta, config)
                    tuned = make_plan(case, meta)
                assert launches(tuned) == launches(given), (shape, config)
                met[type(config).__name__] += 1
    lookup.forget(added=True)
    tuning.reload()
    expected = {
        "fprop": {"ConvConfig", "PackedConfig", "GatherConfig", "DepthwiseConfig"},
        "dgrad": {"ConvConfig", "DepthwiseConfig"},
        "wgrad": {"WgradChoice", "PackedConfig", "DepthwiseWgradConfig"},
    }
    assert expected[direction] <= set(met)


def launches(plan) -> tuple:
    """Returns what tells a plan from others: its class, its configuration, how x is packed."""
    names = ("config", "row_copies", "packing", "part_rounds", "choice")
    return type(plan), *(str(getattr(plan, name, None)) for name in names)


# ---- The shipped table -------------------------------------------------------------------------


def test_the_shipped_tables_are_tables():
    from triton_ext.ops.core.tables import decode

    paths = sorted(shipped_path("NVIDIA H200").parent.glob("*.json"))
    assert shipped_path("NVIDIA H200") in paths
    for path in paths:
        table = read_table(path)
        assert shipped_path(table.gpu) == path
        for key, entry in table.entries.items():
            made = Entry.of(entry)
            assert decode(made.kind, made.config) is not None, key
            assert json.loads(json.dumps(entry)) == entry
