"""mbarriers, copies and products of Hopper, operation by operation, in small TTGIR kernels."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from hopper_text import ACC, BAR, BLOCKED, BUFFER, DESC, Descriptor, kernel, message, run  # noqa: E402
from triton_ext.emulator import EmulationError, Program  # noqa: E402

COPY = """
    $alloc a
    $bar full 1
    $expect full 8192
    $load a full c0
    $wait full 0
    $store a c0
    $stores 0
"""


# ---- Copies ------------------------------------------------------------------------------------


def test_a_block_is_copied():
    x, y = run(COPY)
    assert (x == y).all()


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_what_is_out_of_bounds(padding):
    x, y = run(COPY.replace("full c0", "full c32"), padding=padding)
    assert (y[:32] == x[32:]).all()
    assert (np.isnan(y[32:]) if padding == "nan" else y[32:] == 0).all()
    x, y = run(COPY.replace("full c0", "full before"), padding=padding)
    assert (y[32:] == x[:32]).all()
    assert (np.isnan(y[:32]) if padding == "nan" else y[:32] == 0).all()


def test_stores_end_at_the_bounds():
    x, y = run(COPY.replace("store a c0", "store a c32"))
    assert (y[32:] == x[:32]).all()
    assert (y[:32] == 1).all()


def test_a_store_is_done_when_the_kernel_ends():
    x, y = run(COPY.replace("$stores 0", "$stores 0 ,read_only"))
    assert (x == y).all()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("$wait full 0\n", "", "reads 'a' while a copy into it is in flight"),
        ("$stores 0\n", "", "the kernel ends while this store may still read shared memory"),
        ("$stores 0", "$stores 1", "the kernel ends while this store may still read"),
        ("$store a c0", "$write a ones\n$store a c0", "may not see what was written there"),
        ("$store a c0", "$store a c0\n$write a ones", "overwrites 'a' while a copy from it is in"),
        ("$wait full 0\n", "$load a full c0\n$wait full 0\n", "overwrites 'a' while a copy into"),
        ("$load a full c0", "$write a ones\n$load a full c0", "may do so in front of what was"),
        ("$store a c0\n", "$inval full\n$wait full 1\n", "'full' is not an mbarrier"),
    ],
)
def test_copies_that_are_wrong(before, after, expected):
    assert before in COPY
    assert expected in message(COPY.replace(before, after))


def test_a_fence_makes_a_write_visible():
    _, y = run(COPY.replace("$store a c0", "$write a ones\n$fence\n$store a c0"))
    assert (y == 1).all()


def test_a_kernel_does_not_end_in_front_of_its_copies():
    text = message("$alloc a\n$bar full 1\n$load a full c0")
    assert "the kernel ends while this copy into shared memory is in flight" in text


def test_ctas_of_a_cluster_that_share_nothing_are_each_alone():
    x, y = run(COPY, ctas=2)
    assert (x == y).all()
    assert "reads 'a' while a copy into it is in flight" in message(
        COPY.replace("$wait full 0\n", ""), ctas=2
    )


@pytest.mark.parametrize("target", ['ttg.target = "hip:gfx950", ', ""])
def test_modules_for_other_gpus_are_refused(target):
    text = kernel(COPY).replace('ttg.target = "cuda:90", ', target)
    with pytest.raises(EmulationError) as caught:
        Program(text)
    assert 'needs a module with ttg.target = "cuda:90", this one has' in str(caught.value)


def test_a_descriptor_of_a_tensor_of_another_type_is_refused():
    with pytest.raises(TypeError, match="2 bytes each: got the descriptor of a tensor of float32"):
        run(COPY, np.zeros((64, 64), np.float32))


def test_names_of_sizes_are_those_of_any_release():
    text = kernel(COPY)
    for name in "xy":
        for dim in (0, 1):
            text = text.replace(f"%{name}.shape.{dim}", f"%{name}_{dim}")
            text = text.replace(f"%{name}.stride.{dim}", f"%{name}_{dim + 2}")
    x, y = np.arange(4096, dtype=np.float16).reshape(64, 64), np.zeros((64, 64), np.float16)
    Program(text).run((1,), [Descriptor(z, [64, 64], [64, 1], [64, 64]) for z in (x, y)])
    assert (x == y).all()


@pytest.mark.parametrize("rank", [1, 3])
def test_a_descriptor_of_a_tensor_of_another_rank_is_refused(rank):
    x = np.zeros((64, 64), np.float16)
    wrong = Descriptor(x, [64] * rank, [1] * rank, [64, 64])
    with pytest.raises(TypeError, match=f"%x: the descriptor's tensor has {rank} dimensions"):
        Program(kernel(COPY)).run((1,), [wrong, wrong])


def test_a_tensor_without_memory_is_refused():
    torch = pytest.importorskip("torch", reason="numpy has no such arrays")
    x = torch.zeros(64, 64, dtype=torch.float16, device="meta")
    with pytest.raises(TypeError, match="expected a numpy array or a CPU tensor, got one on meta"):
        run(COPY, x)


WIDE = "!ttg.memdesc<128x32xf16, #s, #smem, mutable>"
HALF = "<32x64xf16, #s, #smem, mutable, 64x64>"
INTEGERS = "!ttg.memdesc<64x64xi16, #s, #smem, mutable>"


def test_a_buffer_in_another_shape():
    x, y = run(
        COPY.replace(
            "$store a c0",
            f"""%w = ttg.memdesc_reinterpret %a : {BUFFER} -> {WIDE}
            %b = ttg.memdesc_reinterpret %w : {WIDE} -> {BUFFER}
            $store b c0""",
        )
    )
    assert (x == y).all()
    text = message(COPY + f"%i = ttg.memdesc_reinterpret %a : {BUFFER} -> {INTEGERS}")
    assert "the emulator cannot view f16 in a buffer as i16" in text


def test_a_part_of_a_buffer():
    half = "!ttg.memdesc<32x64xf16, #s, #smem, mutable, 64x64>"
    x, y = run(
        COPY.replace(
            "$store a c0",
            f"""%h = ttg.memdesc_subslice %a[32, 0] : {BUFFER} -> {half}
            %l = ttg.memdesc_subslice %a[0, 0] : {BUFFER} -> {half}
            %v = ttg.local_load %h : {half} -> tensor<32x64xf16, #blocked>
            ttg.local_store %v, %l : tensor<32x64xf16, #blocked> -> {half}
            $fence
            $store a c0""",
        )
    )
    assert (y[:32] == x[32:]).all()
    assert (y[32:] == x[32:]).all()


@pytest.mark.parametrize(
    "body",
    [
        "$alloc a\n$store a c0\n$stores 0",
        "$alloc a\n$read v a",
        "$alloc a\n$dot p a a zero\n$dots r p 0",
        f"""$alloc a
        %h = ttg.memdesc_subslice %a[32, 0] : {BUFFER} -> !ttg.memdesc{HALF}
        ttg.local_store %half, %h : tensor<32x64xf16, #blocked> -> !ttg.memdesc{HALF}
        $fence
        $store a c0
        $stores 0""",
    ],
    ids=["store", "load", "product", "half"],
)
def test_what_nothing_has_written_is_not_read(body):
    text = message(f"%half = arith.constant dense<1.0> : tensor<32x64xf16, #blocked>\n{body}")
    assert "reads 'a' before all of its elements were written" in text


def test_a_kernel_needs_no_more_than_there_is():
    large = BUFFER.replace("<", "<64x")
    with pytest.raises(EmulationError, match="needs 524288 bytes of shared memory; a sm_90 has 23"):
        Program(kernel(f"%a = ttg.local_alloc : () -> {large}"))
    Program(kernel(f"%a = ttg.local_alloc : () -> {BUFFER.replace('<', '<28x')}"))


# ---- mbarriers ---------------------------------------------------------------------------------


def test_a_fresh_mbarrier_is_over_for_the_odd_parity():
    run("$bar full 1\n$wait full 1")


def test_an_mbarrier_that_was_invalidated_can_be_one_again():
    body = f"$bar full 1\n$inval full\nttng.init_barrier %full, 2 : {BAR}\n$arrive full 2\n"
    run(body + "$wait full 0")
    assert "its phase 1 has 0 of 2 arrivals" in message(body + "$wait full 1")


def test_phases_follow_each_other():
    run(
        "$bar full 2\n"
        + "$arrive full 1\n$arrive full 1\n$wait full 0\n$arrive full 2\n$wait full 1"
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("$bar full 2\n$arrive full 1\n$wait full 0", "its phase 0 has 1 of 2 arrivals"),
        ("$bar full 1\n$arrive full 1\n$wait full 1", "waits for the phase of parity 1"),
        ("$bar full 1\n$wait full 0", "no phase of it is complete yet: a wait for parity 0 is for"),
        (
            "$bar full 1\n$arrive full 1\n$wait full 1",
            "its phase 0, of parity 0, is complete: a wait for parity 0 goes on, one for parity 1 "
            "is for phase 1",
        ),
        (
            "$bar full 1\n$arrive full 2",
            "arrives 2 times at mbarrier 'full', whose phase expects 1",
        ),
        ("$bar full 1\n$expect full 64\n$arrive full 1", "whose phase expects 0 more"),
        ("$bar full 1\n$expect full 64\n$wait full 0", "and 64 bytes outstanding"),
        (
            "$alloc a\n$bar full 1\n$expect full 64\n$load a full c0\n$wait full 0",
            "and copies brought 8128 bytes that it does not expect",
        ),
        ("$bar full 1\n$expect full 1048576", "counts 1048575 bytes, not 1048576"),
        ("$raw full\n$wait full 0", "'full' is not an mbarrier: it was not initialised"),
        (
            "$bar other 1\n%zero64 = arith.constant dense<0> : tensor<1xi64, #line>\n"
            f"%full = ttg.local_alloc %zero64 : (tensor<1xi64, #line>) -> {BAR}\n$wait full 0",
            "'full' is not an mbarrier: it was not initialised",
        ),
        (
            f"$bar full 1\nttng.init_barrier %full, 2 : {BAR}",
            "initialises mbarrier 'full', which is one already",
        ),
        ("$alloc a\n$bar full 1\n$load a full c0\n$inval full", "on which a copy in flight"),
    ],
)
def test_mbarriers_that_are_wrong(body, expected):
    assert expected in message(body)


def test_copies_land_one_by_one_until_the_phase_can_go_on():
    body = """
        $alloc a
        $alloc b
        $bar full 1
        $expect full 8192
        $load a full c0
        $load b full c0
        $wait full 0
        $store a c0
        $store b c0
        $stores 0
    """
    # One of the two is there, and the kernel reads both; which one, the seed decides.
    found = {message(body, seed=seed).split("'")[1] for seed in range(20)}
    assert found == {"a", "b"}


# ---- products ----------------------------------------------------------------------------------

PRODUCT = """
    $alloc a
    $bar full 1
    $expect full 8192
    $load a full c0
    $wait full 0
    $dot p a a zero
    $dot q a a p
    $dots r q 0
    $half h r
    $alloc out
    $put out h
    $fence
    $store out c0
    $stores 0
"""


def test_products_follow_each_other():
    x, y = run(PRODUCT, np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16))
    wide = x.astype(np.float64)
    assert np.abs(y - 2 * wide @ wide).max() < 0.1


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("$dots r q 0", "$dots r q 1", "reads the result of a matrix product that is in flight"),
        (
            "$dots r q 0",
            f"%b = ttg.convert_layout %q : {ACC} -> {BLOCKED}\n$dots r q 0",
            "reads the result of a matrix product that is in flight",
        ),
        ("$half h r", "$half h q", "reads the result of a matrix product that is in flight"),
        ("$dots r q 0", "$write a ones\n$dots r q 0", "overwrites 'a' while a matrix product"),
        ("$dot p", "$write a ones\n$dot p", "may not see what was written there"),
        ("$wait full 0\n", "", "reads 'a' while a copy into it is in flight"),
        ("$fence\n", "", "may not see what was written there"),
        ("$dots r q 0\n", "$dots r q 2\n", "in flight"),
    ],
)
def test_products_that_are_wrong(before, after, expected):
    assert before in PRODUCT
    assert expected in message(PRODUCT.replace(before, after))


def test_products_that_are_joined_are_one_for_those_who_wait():
    text = PRODUCT.replace("$dot q a a p", "$dot q a a zero")
    number = "    %one = arith.constant 64 : i32\n"
    marker = (
        '    %m = tt.extern_elementwise %one, %one {libname = "triton_ext.wgmma", libpath = "", '
        'pure = false, symbol = "triton_ext.wgmma.join"} : (i32, i32) -> i32\n'
    )
    joined = text.replace("    $dot p", f"{number}{marker}    $dot p")
    assert "$dots r q 0" in joined
    run(joined)
    for pendings in (0, 1):
        # The older one of two is done behind a wait that leaves one, unless they are one.
        waited = f"$dots r p {pendings}\n"
        for body, is_done in ((text, True), (joined, pendings == 0)):
            end = "    $half h r\n    $dots z q 0\n"
            changed = body.replace("    $dots r q 0\n    $half h r\n", f"    {waited}{end}")
            if is_done:
                run(changed)
            else:
                assert "product that is in flight" in message(changed)


def test_products_of_float32_read_10_bits_of_the_mantissa():
    wide, shared = "64x64xf32", "!ttg.memdesc<64x64xf32, #f, #smem>"
    body = f"""
        %long = arith.constant dense<1.000732421875> : tensor<{wide}, #blocked>
        %a = ttg.local_alloc %long : (tensor<{wide}, #blocked>) -> {shared}
        $fence
        %p = ttng.warp_group_dot %a, %a, %zero {{inputPrecision = 0 : i32}} : {shared} * {shared} -> {ACC}
        $half h p
        $alloc out
        $put out h
        $fence
        $store out c0
        $stores 0
    """  # noqa: E501 - TTGIR
    # 1 + 2^-10 - 2^-12 is 1 in tf32; the sums of the long numbers would be 64.09.
    _, y = run(body)
    assert (y == 64).all()


def test_a_kernel_does_not_end_in_front_of_its_products():
    body = PRODUCT.partition("$dots")[0]
    assert "the kernel ends while this matrix product may still read" in message(body)


# ---- partitions --------------------------------------------------------------------------------

PARTITIONS = f"""
    $alloc a
    $bar full 1
    $bar done 1
    ttg.warp_specialize(%a, %full, %done, %x, %true, %c0)
    default {{
        $expect full 8192
        $load a full c0
        $wait done 0
        $store a c0
        $stores 0
        ttg.warp_yield
    }}
    partition0(%a0: {BUFFER}, %full0: {BAR}, %done0: {BAR}, %x0: {DESC}, %t0: i1, %n: i32) num_warps(4) {{
        %two = arith.constant dense<2.0> : tensor<64x64xf16, #blocked>
        ttng.wait_barrier %full0, %n : {BAR}
        $read v a0
        %w = arith.mulf %v, %two : tensor<64x64xf16, #blocked>
        $write a0 w
        $fence
        $arrive done0 1
        ttg.warp_return
    }} : ({BUFFER}, {BAR}, {BAR}, {DESC}, i1, i32) -> ()
"""  # noqa: E501 - TTGIR


def test_partitions_take_turns():
    for seed in range(20):
        x, y = run(PARTITIONS, seed=seed)
        assert (y == 2 * x).all()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            f"ttng.wait_barrier %full0, %n : {BAR}",
            "",
            ("in flight", "orders the two accesses", "elements were written"),
        ),
        ("$wait done 0\n", "", ("in flight", "orders the two accesses")),
        ("$fence\n", "", ("may not see what was written there",)),
        ("$arrive done0 1\n", "", ("deadlock: the default partition waits for the phase",)),
        ("$expect full 8192\n", "", ("deadlock",)),
    ],
)
def test_partitions_that_are_wrong(before, after, expected):
    assert before in PARTITIONS
    for seed in range(10):
        text = message(PARTITIONS.replace(before, after), seed=seed)
        assert any(each in text for each in expected), text


def test_the_default_partition_waits_for_what_was_started_in_front_of_it():
    body = PARTITIONS.replace(
        "ttg.warp_specialize(",
        "$alloc b\n$write b ones\n$fence\n$store b c64\nttg.warp_specialize(",
    )
    x, y = run(body)
    assert (y == 2 * x).all()
    assert "may still read shared memory" in message(body.replace("$stores 0", "$stores 2"))


def test_a_deadlock_names_all_that_wait():
    text = message(PARTITIONS.replace("$expect full 8192\n", ""))
    assert "and partition 0 waits for the phase of parity 0 of mbarrier 'full'" in text
    assert "its phase 0 has 0 of 1 arrivals" in text


def test_an_arrival_that_comes_too_early_is_a_race_in_every_order():
    body = PARTITIONS.replace(
        "        $write a0 w\n        $fence\n        $arrive done0 1\n",
        "        $arrive done0 1\n        $write a0 w\n        $fence\n",
    )
    assert body != PARTITIONS
    for seed in range(20):
        text = message(body, seed=seed)
        assert "orders the two accesses" in text or "a copy from it is in flight" in text
