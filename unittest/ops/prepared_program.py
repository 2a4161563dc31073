"""Prepared launches beside those of Triton's launcher, byte by byte: test_prepared_launch.py.

Needs a process whose libcuda is the stand-in (``stand_in_driver.environment_of``).  Runs
every function whose name starts with ``check_`` and prints a JSON object: name to "", to "skip: "
and a reason, or to a traceback.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import traceback
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from launch_recorder import Launch, Recorder
from planned import plan_dgrad, plan_fprop, plan_wgrad, ranking_of
from stand_in_operators import H200, operators_on_stand_in
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_ext import ops, plugin
from triton_ext.backends.nvidia.backend.prepared import PreparedLaunch, parameter_sizes
from triton_ext.host import capabilities
from triton_ext.ops.api.execution import BoundConvolution
from triton_ext.ops.core import dispatch_cache, launcher
from triton_ext.ops.core.descriptors import packed_strides
from triton_ext.ops.core.epilogue import PLAIN, EpilogueArguments, EpilogueSpec
from triton_ext.ops.core.launcher import BoundPlan, Launcher, recording
from triton_ext.ops.core.problem import ConvProblem
from triton_ext.ops.families import wgrad as wgrad_family
from triton_ext.ops.families.gemm_config import ConvConfig
from triton_ext.ops.families.gluon_config import TileConfig
from triton_ext.ops.families.gluon_wgrad import WgradTileChoice
from triton_ext.ops.families.wgrad import WgradChoice

from benchmarks.calls import through

CPU = torch.device("cpu")
HALF = torch.float16
BASIC = ConvProblem(
    batch=2,
    in_channels=64,
    out_channels=64,
    input_size=(10, 10),
    filter_size=(3, 3),
    stride=(1, 1),
    padding=((1, 1), (1, 1)),
    dilation=(1, 1),
)

recorder = Recorder()
sizes: dict[int, list[int]] = {}  # of a kernel's parameters, by its launcher's way around
compared: list[Launch] = []
prepare = launcher._prepare_launch


def prepare_and_look(compiled: Any, *rest: Any) -> Any:
    """Prepares as usual, and keeps what the kernel's PTX says of its parameters."""
    prepared = prepare(compiled, *rest)
    assert prepared is not None, f"{compiled.name} was not prepared"
    sizes[id(prepared)] = parameter_sizes(compiled.asm["ptx"])
    return prepared


def compare(made: Launcher, tensors: tuple[Any, ...]) -> None:
    """Launches both ways, instead of ``Launcher.launch``."""
    way = bypass_of(made, tensors)
    counts = sizes[id(way.prepared)]
    others = (*made.arguments(tensors), *made.constants.values())
    expected = recorder.record(counts, lambda: way.run(*others))
    done: list[bool] = []
    got = recorder.record(counts, lambda: done.append(way.prepared(tensors)))
    assert done == [True]
    assert len(expected) == 1
    assert got == expected
    compared.extend(got)


def bypass_of(made: Launcher, tensors: tuple[Any, ...]) -> Any:
    way = made.bypass(tensors)
    assert way is not None
    return way


def both_ways(run: Any) -> list[Launch]:
    """Calls run(), which launches through the front door, then again, comparing each launch."""
    run()
    compared.clear()
    with mock.patch.object(Launcher, "launch", compare):
        run()
    assert compared
    return list(compared)


def last(shape: tuple[int, ...], dtype: torch.dtype = HALF) -> torch.Tensor:
    """A new channels-last tensor [N, C, *spatial]; what is kept gives the next another address."""
    kept.append(torch.zeros(shape[0], *shape[2:], shape[1], dtype=dtype))
    return kept[-1].movedim(-1, 1)


kept: list[torch.Tensor] = []


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    packed = packed_strides((shape[0], *shape[2:], shape[1]))
    return (packed[0], packed[-1], *packed[1:-1])


def smallest(ranking: Any, kind: type) -> Any:
    """The smallest configuration of a kernel, which compiles fastest."""
    found = [config for config in ranking if isinstance(config, kind)]
    return min(found, key=lambda config: config.block_m * config.block_n)


def fprop(
    problem: ConvProblem = BASIC,
    config: Any = None,
    epilogue: EpilogueSpec = PLAIN,
    dtype: torch.dtype = HALF,
    **options: Any,
) -> list[Launch]:
    plan = plan_fprop(problem, strides_of(problem.x_shape), dtype, CPU, epilogue, config, **options)
    co = problem.out_channels

    def run() -> None:
        operands = EpilogueArguments(
            bias=torch.zeros(co, dtype=dtype) if epilogue.bias else None,
            scale=torch.zeros(co) if epilogue.scale else None,
            residual=last(problem.y_shape, dtype) if epilogue.residual else None,
        )
        kept.append(plan.run(last(problem.x_shape, dtype), last(problem.w_shape, dtype), operands))

    return both_ways(run)


def dgrad(problem: ConvProblem, config: Any = None, bias: bool = False) -> list[Launch]:
    plan = plan_dgrad(problem, strides_of(problem.y_shape), HALF, CPU, config)

    def run() -> None:
        added = torch.zeros(problem.in_channels, dtype=HALF) if bias else None
        dy, weight = last(problem.y_shape), last(problem.w_shape)
        kept.append(plan.run(dy, weight, EpilogueArguments(added)))

    return both_ways(run)


def wgrad(problem: ConvProblem, dtype: torch.dtype = HALF, **options: Any) -> list[Launch]:
    x_strides, dy_strides = strides_of(problem.x_shape), strides_of(problem.y_shape)
    plan = plan_wgrad(problem, x_strides, dy_strides, dtype, CPU, **options)
    return both_ways(
        lambda: kept.append(plan.run(last(problem.x_shape, dtype), last(problem.y_shape, dtype)))
    )


def jit_config(problem: ConvProblem = BASIC) -> ConvConfig:
    return smallest(ranking_of("fprop", problem, HALF, H200), ConvConfig)


def needs_gluon() -> None:
    if not capabilities()["im2col-gluon"].available:
        pytest.skip(capabilities()["im2col-gluon"].reason)


# ---- Every kind of plan ------------------------------------------------------------------------


def check_fprop() -> None:
    (made,) = fprop(config=jit_config())
    assert made.attributes == ()


def check_fprop_with_epilogue() -> None:
    fprop(config=jit_config(), epilogue=EpilogueSpec(bias=True, residual=True, activation="relu"))


def check_fprop_through_pointers() -> None:
    odd = replace(BASIC, out_channels=63)
    fprop(odd, jit_config(odd), EpilogueSpec(bias=True, scale=True))


def check_fprop_of_a_matrix_in_3d() -> None:
    ones = (1, 1, 1)
    problem = replace(
        BASIC,
        input_size=(4, 5, 6),
        filter_size=ones,
        stride=ones,
        padding=((0, 0),) * 3,
        dilation=ones,
    )
    fprop(problem, jit_config(problem))


def check_fprop_in_gluon() -> None:
    needs_gluon()
    config = smallest(ranking_of("fprop", BASIC, HALF, H200), TileConfig)
    fprop(config=config, epilogue=EpilogueSpec(bias=True))


def check_dgrad() -> None:
    strided = replace(BASIC, stride=(2, 2))
    dgrad(strided, smallest(ranking_of("dgrad", strided, HALF, H200), ConvConfig))


def check_dgrad_with_bias() -> None:
    dgrad(BASIC, smallest(ranking_of("dgrad", BASIC, HALF, H200), ConvConfig), bias=True)


def check_dgrad_in_gluon() -> None:
    needs_gluon()
    dgrad(BASIC, smallest(ranking_of("dgrad", BASIC, HALF, H200), TileConfig), bias=True)


def wgrad_choices(problem: ConvProblem, kind: type) -> list[Any]:
    return [choice for choice in ranking_of("wgrad", problem, HALF, H200) if type(choice) is kind]


def check_wgrad() -> None:
    problem = replace(BASIC, batch=32)
    first, second = wgrad(problem, config=wgrad_choices(problem, WgradChoice)[0])
    # The reducer starts while the kernel in front of it ends.
    assert first.attributes == ()
    assert len(second.attributes) == 1


def check_wgrad_in_gluon() -> None:
    needs_gluon()
    problem = replace(BASIC, batch=32)
    choices = wgrad_choices(problem, WgradTileChoice)
    assert len(wgrad(problem, config=choices[0])) in (1, 2)


def check_direct() -> None:
    fprop(
        replace(BASIC, in_channels=32, out_channels=32, groups=8), epilogue=EpilogueSpec(bias=True)
    )


def check_depthwise() -> None:
    channels = replace(BASIC, groups=64)
    fprop(channels)
    assert len(wgrad(channels)) == 2


def check_row_copies() -> None:
    few = replace(BASIC, in_channels=3, input_size=(32, 32), filter_size=(7, 7), stride=(2, 2))
    assert len(fprop(few, pack_rows=True)) >= 2


# ---- Calls that look like one before -----------------------------------------------------------


def of_functions() -> list[Any]:
    """What is cached for calls of functions, and not only for those of operators."""
    names = ("conv2d", "conv2d_input", "conv2d_weight", "backward")
    return [value for key, value in dispatch_cache._cache._values.items() if key[0][0] in names]


def plan_of(bound: Any) -> BoundPlan:
    return bound.run.__self__ if isinstance(bound, BoundConvolution) else bound


def assert_same_but_for_memory(expected: list[Launch], got: list[Launch], given: set[int]) -> None:
    """Memory that a call makes lies elsewhere each time, and is the same in all its launches."""
    assert len(expected) == len(got)
    moved: dict[int, int] = {}
    for one, other in zip(expected, got, strict=True):
        assert replace(one, parameters=()) == replace(other, parameters=())
        for first, second in zip(one.parameters, other.parameters, strict=True):
            if first == second:
                continue
            assert len(first) in (8, 128)
            assert first[8:] == second[8:]
            addresses = [int.from_bytes(each[:8], "little") for each in (first, second)]
            assert not given.intersection(addresses)
            assert moved.setdefault(*addresses) == addresses[1]
    assert len(set(moved.values())) == len(moved)


def repeated(make: Any, is_in_place: bool = True, launches: int = 1) -> None:
    """Calls an operator again and again; the last launches are what the plan itself launches.

    Args:
        make: Returns a call of new tensors, and these.
        is_in_place: Whether the plan passes its tensors as they are.
        launches: How many kernels it takes.
    """
    dispatch_cache.clear()
    for _ in range(3):
        call, _ = make()
        kept.append(call())
    (bound,) = of_functions()
    found = plan_of(bound)
    assert (found._replay is not None) == is_in_place
    again = found._replay
    call, tensors = make()
    found._replay, found._tries = None, 0
    with recording() as launched:
        kept.append(call())
    counts = [sizes[id(bypass_of(*it).prepared)] for it in launched]
    with mock.patch.object(PreparedLaunch, "__call__", return_value=False):
        expected = recorder.record_all(counts, lambda: kept.append(call()))
    found._replay = again
    got = recorder.record_all(counts, lambda: kept.append(call()))
    given = {t.data_ptr() for t in tensors if t is not None}
    assert_same_but_for_memory(expected, got, given)
    assert len(got) == launches


def plain() -> Any:
    return last(BASIC.x_shape), last(BASIC.w_shape), None, {}


def with_operands() -> Any:
    x, weight, _, _ = plain()
    kept.append(torch.zeros(64, dtype=HALF))
    return x, weight, kept[-1], {"residual": last(BASIC.y_shape), "scale": torch.zeros(64)}


def forward(make: Any, **options: Any) -> Any:
    """What makes a call of conv2d with padding; ``make`` returns x, weight, bias and the rest."""

    def call() -> Any:
        x, weight, bias, others = make()
        return (
            lambda: ops.conv2d(x, weight, bias, 1, 1, **others, **options),
            (x, weight, bias, *others.values()),
        )

    return call


def check_repeated_calls() -> None:
    repeated(forward(plain))
    repeated(forward(with_operands, activation="relu"))
    odd = torch.zeros(63, dtype=HALF)
    repeated(forward(lambda: (last((2, 64, 9, 9)), last((63, 64, 3, 3)), odd, {})))


def check_repeated_calls_that_copy() -> None:
    # Rows of few channels are packed by kernels of their own, into memory of the call.
    def few() -> Any:
        x, weight = last((2, 3, 32, 32)), last((64, 3, 7, 7))
        return lambda: ops.conv2d(x, weight, None, 2, 3), (x, weight)

    repeated(few, launches=2)


def check_repeated_gradients() -> None:
    def of_x() -> Any:
        dy, weight = last(BASIC.y_shape), last(BASIC.w_shape)
        return lambda: ops.conv2d_input(BASIC.x_shape, weight, dy, 1, 1), (dy, weight)

    def of_weight(batch: int, groups: int = 1) -> Any:
        def make() -> Any:
            x, dy = last((batch, 64, 10, 10)), last((batch, 64, 10, 10))
            size = (64, 64 // groups, 3, 3)
            return lambda: ops.conv2d_weight(x, size, dy, 1, 1, 1, groups), (x, dy)

        return make

    repeated(of_x)
    repeated(of_weight(32), launches=2)
    repeated(of_weight(2, groups=64), launches=2)


def check_flags_are_those_of_the_stream() -> None:
    needs_gluon()
    made: list[torch.Tensor] = []

    def flags(device: torch.device, count: int) -> torch.Tensor:
        # Without an operation of torch, as those of a stream on a GPU.
        if not made:
            made.append(count_flags[:count])
        return made[0]

    count_flags = torch.zeros(1 << 16, dtype=torch.int32)
    problem = replace(BASIC, batch=32)
    choice = next(c for c in wgrad_choices(problem, WgradTileChoice) if c.add_in_place)

    def chosen(module: Any, *_: Any, **__: Any) -> Any:
        strides = strides_of(problem.x_shape), strides_of(problem.y_shape)
        return plan_wgrad(problem, *strides, HALF, CPU, config=choice)

    plan = chosen(None)
    again = BoundPlan(plan)
    x, dy = last(problem.x_shape), last(problem.y_shape)
    with (
        mock.patch.object(wgrad_family, "zeroed_flags", flags),
        mock.patch.object(launcher, "zeroed_flags", flags),
        mock.patch.object(launcher, "_are_flags", lambda tensor: tensor is made[0]),
    ):
        for _ in range(3):
            kept.append(again.run(x, dy))
        assert again._replay is not None
        with recording() as launched:
            kept.append(plan.run(x, dy))
        counts = [sizes[id(bypass_of(*it).prepared)] for it in launched]
        expected = recorder.record_all(counts, lambda: kept.append(plan.run(x, dy)))
        other = count_flags[1 << 15 :]
        made[:] = [other]
        got = recorder.record_all(counts, lambda: kept.append(again.run(x, dy)))
    assert_same_but_for_memory(expected, got, {x.data_ptr(), dy.data_ptr()})
    assert other.data_ptr().to_bytes(8, "little") in got[0].parameters


def check_repeated_training() -> None:
    dispatch_cache.clear()
    x = last(BASIC.x_shape).requires_grad_()
    weight = last(BASIC.w_shape).requires_grad_()
    bias = torch.zeros(64, dtype=HALF, requires_grad=True)
    dy = last(BASIC.y_shape)
    for _ in range(5):
        y = ops.conv2d(x, weight, bias, 1, 1)
        gradients = torch.autograd.grad(y, (x, weight, bias), dy)
        kept.extend((y, *gradients))
    assert [tuple(each.shape) for each in gradients] == [x.shape, weight.shape, bias.shape]
    forward, backward = of_functions()
    for each in (plan_of(forward), *backward):
        assert each._replay is not None


def check_calls_whose_weight_is_copied_are_not_repeated() -> None:
    repeated(forward(lambda: (plain()[0], torch.zeros(BASIC.w_shape, dtype=HALF), None, {})), False)


def check_calls_of_two_tensors_that_are_one() -> None:
    def same() -> Any:
        x, weight, _, _ = plain()
        return x, weight, None, {"residual": x}

    repeated(forward(same), False)


def check_unaligned_tensors_are_copied() -> None:
    repeated(forward(plain))
    x, _, _, _ = plain()
    odd = torch.zeros(64 * 9 * 64 + 1, dtype=HALF)[1:].view(64, 3, 3, 64).movedim(-1, 1)
    with recording() as launched:
        kept.append(ops.conv2d(x, odd, None, 1, 1))
    (it,) = launched
    (launch,) = recorder.record(
        sizes[id(bypass_of(*it).prepared)],
        lambda: kept.append(ops.conv2d(x, odd, None, 1, 1)),
    )
    # The second map of the kernel is that of the weight; the stand-in's begin with the address.
    maps = [p for p in launch.parameters if len(p) == 128]
    address = int.from_bytes(maps[1][:8], "little")
    assert address % 16 == 0
    assert address != odd.data_ptr()


def check_nobody_keeps_the_tensors_of_a_call() -> None:
    dispatch_cache.clear()
    given: list[int] = []

    def call() -> None:
        x, weight, _, _ = plain()
        kept.append(ops.conv2d(x, weight, None, 1, 1))
        given.extend((x.data_ptr(), weight.data_ptr()))

    for _ in range(4):
        call()
    with through("triton"):
        call()
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor]
    # One is what last() keeps, for each.
    assert sorted(t.data_ptr() for t in tensors if t.data_ptr() in given) == sorted(given)


def check_output_of_a_repeated_call() -> None:
    repeated(forward(plain))
    first, again = kept[-2], kept[-1]
    for one in (first, again):
        assert one.shape == BASIC.y_shape
        assert one.is_contiguous(memory_format=torch.channels_last)
        assert one.dtype == HALF
    assert first.data_ptr() != again.data_ptr()


def check_what_comes_later_is_seen_by_repeated_calls() -> None:
    repeated(forward(plain))
    x, weight, _, _ = plain()
    (bound,) = of_functions()
    launch = plan_of(bound)._replay.launch
    y = torch.empty_like(x)
    tensors = (x, weight, None, y, None, None, launcher._NO_MEMORY)
    assert launch(tensors)
    (kernel,) = launch._kernels
    with mock.patch.object(kernel, "pre_run_hooks", [print]):
        assert not launch(tensors)
    with mock.patch.object(triton.knobs.runtime, "launch_enter_hook", print):
        assert not launch(tensors)
    plugin.uninstall()
    try:
        assert not launch(tensors)
    finally:
        plugin.install()
    with mock.patch.object(plugin, "passes_key", return_value=("other",)):
        assert not launch(tensors)
    with mock.patch.object(triton.runtime.driver, "_active", type(triton.runtime.driver.active)()):
        assert not launch(tensors)
    assert launch(tensors)


# ---- What launches have besides ----------------------------------------------------------------


@triton.jit
def small_kernel(x_desc, y_ptr, n, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)[:, None]
    tile = x_desc.load([0, n])
    tl.store(y_ptr + rows * BLOCK + tl.arange(0, BLOCK)[None, :], tile)


def small(grid: tuple[int, int, int] = (3, 2, 1), **options: Any) -> Launcher:
    return Launcher(
        kernel=small_kernel, grid=grid, scalars=(7,), constants={"BLOCK": 64}, options=options
    )


def tensors() -> tuple[Any, ...]:
    kept.append(torch.zeros(128, 64, dtype=HALF))
    kept.append(torch.zeros(64, 64, dtype=HALF))
    return TensorDescriptor(kept[-2], [128, 64], [64, 1], [64, 64]), kept[-1]


def check_attributes() -> None:
    for options, count in (
        ({"num_ctas": 2}, 2),
        ({"launch_cooperative_grid": True}, 1),
        ({"launch_pdl": True, "num_ctas": 2}, 3),
    ):
        made = small(**options)
        (got,) = both_ways(lambda made=made: made.launch(tensors()))
        assert len(got.attributes) == count, options
        assert got.grid == (3 * options.get("num_ctas", 1), 2, 1)


def check_tensor_in_place_of_its_descriptor() -> None:
    made = small()
    made.launch(tensors())
    (way,) = made._bypasses.values()
    described, y = tensors()
    counts = sizes[id(way.prepared)]
    expected = recorder.record(counts, lambda: made.launch((described, y)))
    assert expected == recorder.record(counts, lambda: way.prepared((described.base, y)))


def check_hooks_are_called() -> None:
    made = small()
    made.launch(tensors())
    (way,) = made._bypasses.values()
    seen: list[str] = []

    def enter(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    for chain in (triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook):
        chain.add(enter)
        assert not way.prepared(tensors())
        made.launch(tensors())
        assert seen == ["small_kernel"]
        chain.remove(enter)
        seen.clear()
    made.launch(tensors())
    assert not seen
    with mock.patch.object(triton.knobs.runtime, "launch_exit_hook", enter):
        assert not way.prepared(tensors())


def launched(way: Any, *arguments: Any) -> int:
    """How often a prepared launch launches."""
    done: list[bool] = []
    count = len(recorder.record((), lambda: done.append(way.prepared(arguments))))
    assert done == [bool(count)]
    return count


def check_what_is_not_launched() -> None:
    made = small()
    made.launch(tensors())
    (way,) = made._bypasses.values()
    x, y = tensors()
    assert launched(way, x, y) == 1
    assert not launched(way, x)
    assert not launched(way, x, None)
    assert not launched(way, None, y)
    assert not launched(way, x, "y")
    other = TensorDescriptor(x.base, [64, 64], [64, 1], [64, 64])
    assert not launched(way, other, y)
    # No address of a map.
    odd = torch.zeros(128 * 64 + 1, dtype=HALF)[1:].view(128, 64)
    assert not launched(way, TensorDescriptor.__new__(TensorDescriptor), y)
    assert not launched(way, odd, y)
    assert not launched(way, torch.empty(0), y)
    # Another context: that of a thread without one.
    state = recorder.library.fake_libcuda_state()
    state[STATE.index("has_context")] = 0
    try:
        assert not launched(way, x, y)
    finally:
        state[STATE.index("has_context")] = 1
    other = type(triton.runtime.driver.active)()
    with mock.patch.object(triton.runtime.driver, "_active", other):
        assert not launched(way, x, y)


def check_errors() -> None:
    made = small()
    made.launch(tensors())
    (way,) = made._bypasses.values()
    others = (*made.scalars, *made.constants.values())
    x, y = tensors()
    recorder.library.fake_launcher_set_result(1)
    try:
        with pytest.raises(RuntimeError) as expected:
            way.run(x, y, *others)
        with pytest.raises(RuntimeError) as got:
            way.prepared((x, y))
    finally:
        recorder.library.fake_launcher_set_result(0)
    assert type(got.value) is type(expected.value)
    assert str(got.value) == str(expected.value) == "Triton Error [CUDA]: invalid argument"


def check_threads_do_not_share_parameters() -> None:
    made = small()
    made.launch(tensors())
    (way,) = made._bypasses.values()
    pairs = [tensors() for _ in range(4)]
    counts = sizes[id(way.prepared)]
    expected = {
        recorder.record(counts, lambda pair=pair: way.prepared(pair))[0].parameters
        for pair in pairs
    }

    def launch_often() -> None:
        threads = [
            threading.Thread(target=lambda pair=pair: [way.prepared(pair) for _ in range(200)])
            for pair in pairs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    seen = [launch.parameters for launch in recorder.record(counts, launch_often)]
    assert len(seen) == 800
    assert set(seen) == expected
    assert all(seen.count(each) == 200 for each in expected)


def check_kernels_of_other_layouts_are_not_prepared() -> None:
    kernel = small_kernel[(1, 1, 1)](*tensors(), 7, 64)
    arguments = (kernel, (1, 1, 1), tensors(), (7, 64))
    assert prepare(*arguments) is not None
    assert prepare(kernel, (0, 1, 1), *arguments[2:]) is None
    assert prepare(*arguments[:3], (7, 64, 1)) is None
    assert prepare(*arguments[:3], (7.0, 64)) is None
    assert prepare(*arguments[:3], (1 << 31, 64)) is None
    ptx = kernel.asm["ptx"]
    for other in (ptx.replace(".param .u32", ".param .u64", 1), "", ptx + ptx):
        assert other != ptx
        with mock.patch.dict(kernel.asm, {"ptx": other}):
            assert prepare(*arguments) is None, other
    run = kernel.run
    for name in ("global_scratch_size", "profile_scratch_size", "gsan_enabled"):
        with mock.patch.object(run, name, 128, create=True):
            assert prepare(*arguments) is None, name
    with mock.patch.object(kernel, "packed_metadata", (4, 16, 0)):
        assert prepare(*arguments) is None
    with mock.patch.object(kernel, "packed_metadata", (4, 1, 228 * 1024 + 1)):
        assert prepare(*arguments) is None


def main() -> None:
    results: dict[str, str] = {}
    with (
        operators_on_stand_in(),
        mock.patch.object(launcher, "_prepare_launch", prepare_and_look),
    ):
        for name, check in list(globals().items()):
            if not name.startswith("check_") or (len(sys.argv) > 2 and name not in sys.argv[2:]):
                continue
            try:
                check()
                results[name] = ""
            except pytest.skip.Exception as skipped:
                results[name] = f"skip: {skipped}"
            except Exception:
                results[name] = traceback.format_exc()
    print(json.dumps(results))  # noqa: T201


STATE = json.loads(sys.argv[1])
main()
