"""The tensor data mover in the emulator: as late as a wait lets it, and never silently wrong."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from emulator_text import tdm_kernel  # noqa: E402
from triton_ext.emulator import EmulationError, Program  # noqa: E402


def run(body, height=20, width=50, rows=range(8), seed=0):
    """Runs a body; gives input, output, what was kept, and the row numbers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((height, width)).astype(np.float32)
    y = np.full((height, width), -1, np.float32)
    z = np.full((8, 32), -2, np.float32)
    index = np.array(list(rows), np.int32)
    Program(tdm_kernel(body)).run((1,), [x, y, z, index, height, width])
    return x, y, z, index


def block(x):
    """The first block, with zeros where there is no tensor."""
    found = np.zeros((8, 32), np.float32)
    part = x[:8, :32]
    found[: part.shape[0], : part.shape[1]] = part
    return found


# ---- what copies do


@pytest.mark.parametrize(("height", "width"), [(20, 50), (8, 32), (5, 40), (30, 7), (1, 1)])
def test_load(height, width):
    x, _, z, _ = run("$alloc a\n$load a\n$wait 0\n$read v a\n$keep v", height, width)
    np.testing.assert_array_equal(z, block(x))


@pytest.mark.parametrize(("height", "width"), [(20, 50), (8, 32), (5, 40), (30, 7), (1, 1)])
def test_store(height, width):
    x, y, _, _ = run("$alloc a\n$load a\n$wait 0\n$store a\n$wait 0", height, width)
    part = y[:8, :32]
    np.testing.assert_array_equal(part, x[:8, :32])
    assert (y[8:] == -1).all()
    assert (y[:, 32:] == -1).all()


@pytest.mark.parametrize("seed", range(20))
def test_gather_and_scatter(seed):
    rng = np.random.default_rng(seed)
    height, width = int(rng.integers(1, 30)), int(rng.integers(1, 60))
    rows = rng.integers(-2, height + 3, 8)
    x, _, z, _ = run("$alloc a\n$gather a\n$wait 0\n$read v a\n$keep v", height, width, rows)
    expected = np.zeros((8, 32), np.float32)
    for place, row in enumerate(rows):
        if 0 <= row < height:
            expected[place, : min(32, width)] = x[row, :32]
    np.testing.assert_array_equal(z, expected)
    # And back: every row that was named holds what was gathered for it last.
    x, y, _, _ = run("$alloc a\n$gather a\n$wait 0\n$scatter a\n$wait 0", height, width, rows)
    kept = np.full((height, width), -1, np.float32)
    for row in rows:
        if 0 <= row < height:
            kept[row, :32] = x[row, :32]
    np.testing.assert_array_equal(y, kept)


def test_a_copy_that_is_off_moves_nothing_and_counts():
    x, _, z, _ = run("$alloc a\n$load a\n$off a\n$wait 1\n$read v a\n$keep v\n$wait 0")
    np.testing.assert_array_equal(z, block(x))


def test_a_prefetch_changes_nothing():
    prefetch = (
        "amdg.tdm_prefetch %in[%zero, %zero], %true, speculative = true : "
        "!tt.tensordesc<8x32xf32, #s>"
    )
    lines = ["%true = arith.constant true", prefetch, "$alloc a", "$load a", "$wait 0"]
    x, _, z, _ = run("\n".join([*lines, "$read v a", "$keep v"]))
    np.testing.assert_array_equal(z, block(x))
    offsets = prefetch.replace("true :", "true returnOffsets :") + " -> tensor<8xi64, #b>"
    with pytest.raises(
        EmulationError, match=r"does not support 'amdg\.tdm_prefetch' with a result"
    ):
        run("\n".join([lines[0], f"%offsets = {offsets}"]))


MOVED = """
    %c3 = arith.constant 3 : i32
    %c9 = arith.constant 9 : i32
    %m = amdg.update_tensor_descriptor %in add_offsets = [%c3, %c9] {clamp} : !tt.tensordesc<8x32xf32, #s>
    $alloc a
    %t = amdg.async_tdm_copy_global_to_local %m into %a : !tt.tensordesc<8x32xf32, #s> -> !ttg.memdesc<8x32xf32, #s, #smem, mutable>
    $wait 0
    $read v a
    $keep v
"""  # noqa: E501 - TTGIR


def test_bounds_move_along_only_if_they_are_clamped():
    x, _, z, _ = run(MOVED.replace("{clamp}", "{clamp_bounds}"), 20, 36)
    np.testing.assert_array_equal(z[:, :27], x[3:11, 9:36])
    assert (z[:, 27:] == 0).all()
    # Without: 36 columns from the new position on, so the next row's come in.
    x, _, z, _ = run(MOVED.replace("{clamp}", ""), 20, 36)
    np.testing.assert_array_equal(z[0, 27:], x[4, :5])


def test_bounds_that_are_set():
    body = MOVED.replace("add_offsets = [%c3, %c9] {clamp}", "set_bounds = [%c3, %c9]")
    x, _, z, _ = run(body)
    np.testing.assert_array_equal(z[:3, :9], x[:3, :9])
    assert (z[3:] == 0).all()
    assert (z[:, 9:] == 0).all()


# ---- when they do it

FAULTS = {
    "reads 'a' while a copy into it is in flight": [
        "$alloc a\n$load a\n$read v a",
        "$alloc a\n$load a\n$wait 1\n$read v a",
        "$alloc a\n$alloc b\n$load b\n$load a\n$wait 1\n$read v a",
        "$alloc a\n$load a\n$off a\n$wait 2\n$read v a",
        "$alloc a\n$gather a\n$count 1\n$read v a",
        # A copy reads LDS as well.
        "$alloc a\n$load a\n$store a",
        "$alloc a\n$load a\n$scatter a",
    ],
    "overwrites 'a' while a copy into it is in flight": [
        "$alloc a\n$alloc b\n$load b\n$wait 0\n$read v b\n$load a\n$write a v",
        "$alloc a\n$load a\n$load a",
        "$alloc a\n$load a\n$gather a",
    ],
    "overwrites 'a' while a copy from it is in flight": [
        "$alloc a\n$load a\n$wait 0\n$read v a\n$store a\n$write a v",
        "$alloc a\n$load a\n$wait 0\n$store a\n$load a",
        "$alloc a\n$load a\n$wait 0\n$store a\n$wait 1\n$gather a",
    ],
    "the kernel ends while a store from LDS is in flight": [
        "$alloc a\n$load a\n$wait 0\n$store a",
        "$alloc a\n$load a\n$wait 0\n$scatter a\n$wait 1",
    ],
    "the kernel ends while a load into LDS is in flight": ["$alloc a\n$load a"],
    "the kernel ends while this copy of its LDS is in flight": [
        "$alloc a\n$copy a",
        "$alloc a\n$copy a\n$commit\n$groups 1",
    ],
}

FAR = """
    $alloc a
    $load a
    $wait 0
    %big = arith.constant 4096 : i64
    %far = tt.addptr %x, %big : !tt.ptr<f32>, i64
    %d = tt.make_tensor_descriptor %far, [%height, %width], [%wide, %one] : <f32>, <8x32xf32, #s>
"""
FAR_LOAD = "%t = amdg.async_tdm_copy_global_to_local %d into %a : !tt.tensordesc<8x32xf32, #s> -> !ttg.memdesc<8x32xf32, #s, #smem, mutable>"  # noqa: E501
FAR_STORE = "amdg.async_tdm_copy_local_to_global %d from %a : !ttg.memdesc<8x32xf32, #s, #smem, mutable> -> !tt.tensordesc<8x32xf32, #s>"  # noqa: E501


@pytest.mark.parametrize(("copy", "does"), [(FAR_LOAD, "reads"), (FAR_STORE, "writes")])
def test_a_descriptor_that_lies_about_its_tensor(copy, does):
    with pytest.raises(EmulationError, match=f"{does} outside of global memory: byte .* 'x'"):
        run(FAR + copy)


@pytest.mark.parametrize(
    ("message", "body"), [(message, body) for message, all_ in FAULTS.items() for body in all_]
)
def test_what_a_kernel_must_not_do(message, body):
    with pytest.raises(EmulationError) as caught:
        run(body)
    assert message in str(caught.value)


def test_the_end_of_a_wave_waits_on_vmcnt():
    """CDNA4 ISA, S_ENDPGM."""
    text = tdm_kernel("$alloc a\n$copy a\n$commit").replace("hip:gfx1250", "hip:gfx950")
    x = np.zeros((20, 50), np.float32)
    arrays = [x, x.copy(), np.zeros((8, 32), np.float32), np.arange(8, dtype=np.int32)]
    Program(text).run((1,), [*arrays, 20, 50])


@pytest.mark.parametrize(
    "body",
    [
        # What is in flight is not what is read.
        "$alloc a\n$alloc b\n$load a\n$load b\n$wait 1\n$read v a\n$keep v\n$wait 0",
        # The newest instruction is the other copy's.
        "$alloc a\n$alloc b\n$load a\n$load b\n$count 1\n$read v a\n$keep v\n$wait 0",
        "$alloc a\n$alloc b\n$gather a\n$load b\n$count 1\n$read v a\n$keep v\n$wait 0",
        # A store's source may be read meanwhile.
        "$alloc a\n$load a\n$wait 0\n$store a\n$read v a\n$keep v\n$wait 0",
    ],
)
def test_what_it_may_do(body):
    run(body)


def test_tokens():
    body = (
        "$alloc a\n$alloc b\n"
        "%ta = amdg.async_tdm_copy_global_to_local %in into %a : !tt.tensordesc<8x32xf32, #s> -> !ttg.memdesc<8x32xf32, #s, #smem, mutable>\n"  # noqa: E501
        "%tb = amdg.async_tdm_copy_global_to_local %in into %b : !tt.tensordesc<8x32xf32, #s> -> !ttg.memdesc<8x32xf32, #s, #smem, mutable>\n"  # noqa: E501
        "%w = amdg.async_tdm_wait %ta {num = 5 : i32}\n"
        "$read v a\n$keep v\n"
    )
    run(body + "$wait 0")
    with pytest.raises(EmulationError, match="reads 'b'"):
        run(body + "$read u b")


def test_a_store_takes_effect_at_its_wait_and_is_poison_until_then():
    read = "%seen = tt.load %yat : tensor<8x32x!tt.ptr<f32>, #b>\n$keep seen\n"
    body = "$alloc a\n$load a\n$wait 0\n$store a\n{0}" + read + "$wait 0"
    x, _, z, _ = run(body.replace("{0}", "$wait 0\n"), width=32)
    np.testing.assert_array_equal(z, x[:8])
    with pytest.raises(EmulationError, match="reads global memory that a copy in flight writes"):
        run(body.replace("{0}", ""), width=32)


def test_lds_that_nobody_wrote_is_poison():
    _, _, z, _ = run("$alloc a\n$read v a\n$keep v")
    assert np.isnan(z).all()


GIVEN_AWAY = """
    $alloc c
    $load c
    $wait 0
    $read v c
    $alloc a
    $load a
    {wait}
    $alloc b
    $write b v
    $wait 0
"""


def test_lds_that_is_given_to_another_buffer():
    """Nobody uses 'a' behind its copy, so 'b' lies where it was."""
    with pytest.raises(
        EmulationError, match="overwrites 'b' while a copy into it is in flight"
    ) as e:
        run(GIVEN_AWAY.replace("{wait}", ""))
    assert "it is one of 'a', whose LDS was given to 'b' behind its last use" in str(e.value)
    run(GIVEN_AWAY.replace("{wait}", "$wait 0"))


def test_faults_say_where():
    with pytest.raises(EmulationError) as caught:
        run("$alloc a\n$load a\n$read v a")
    assert "at operation: %v = ttg.local_load %a" in str(caught.value)
    text = tdm_kernel("$alloc a\n$load a\n$read v a")
    text = text.replace("#b>\n    tt.return", '#b> loc("kernel.py":7:9)\n    tt.return')
    text = text.replace("mutable>\n    %v", 'mutable> loc("kernel.py":5:3)\n    %v')
    x, z = np.zeros((20, 50), np.float32), np.zeros((8, 32), np.float32)
    with pytest.raises(EmulationError) as caught:
        Program(text).run((1,), [x, x.copy(), z, np.zeros(8, np.int32), 20, 50])
    assert (caught.value.filename, caught.value.line, caught.value.column) == ("kernel.py", 7, 9)
    assert "the copy: kernel.py:5:3: amdg.async_tdm_copy_global_to_local" in str(caught.value)


def test_mbarriers_are_refused_by_name():
    body = (
        "$alloc a\n%bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #q, #smem, mutable>\n"
        "%t = amdg.async_tdm_copy_global_to_local %in into %a, barrier = %bar : !tt.tensordesc<8x32xf32, #s>, !ttg.memdesc<1xi64, #q, #smem, mutable> -> !ttg.memdesc<8x32xf32, #s, #smem, mutable>"  # noqa: E501
    )
    text = tdm_kernel(body).replace(
        "#smem =",
        "#q = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>\n#smem =",
    )
    with pytest.raises(EmulationError, match="which the emulator does not model for AMD GPUs"):
        Program(text)
