"""Partitioned values in a compile, where Triton's own allocation is wrong about them."""

from __future__ import annotations

import itertools
import os
import random
import re

import pytest

triton = pytest.importorskip("triton")

from partitioned_modules import allocation_in_child, barrier_case, barriers, module_of, partitioned  # noqa: E402
from triton_ext import host, plugin  # noqa: E402
from triton_ext.analysis.allocation import allocate, buffer_size, reserved_bytes  # noqa: E402
from triton_ext.backends.amd.passes.align_partitioned_shared import (  # noqa: E402
    AlignPartitionedShared,
)
from triton_ext.errors import PassError, VerifyError  # noqa: E402
from triton_ext.ir import parse  # noqa: E402
from triton_ext.ir.aliases import AliasTable  # noqa: E402
from triton_ext.passes import PassManager  # noqa: E402

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
PARTITION, LDS = 65536, 5 * 65536

pytestmark = pytest.mark.skipif(
    not host.capabilities()["amd-partitioned-shared"].available, reason="no partitioned values"
)

PLAIN, TWO, FOUR = None, partitioned(2), partitioned(4)
SHORT = partitioned(2, 16, "[64:+4] {order = [1, 0], shape = [16, 64]}")


def aligned(text):
    """The module behind our pass, for the installed Triton."""
    module = parse(text)
    PassManager([AlignPartitionedShared()], host_features=host.features).run(module)
    return module


def check(module, offsets, total):
    """Fails if two values share a byte, all bytes of padding counted, or one lies outside."""
    table = AliasTable.of(module.aliases)
    taken = []
    ops = [op for op in module.walk() if op.name == "ttg.local_alloc"]
    for op, places in zip(ops, offsets, strict=True):
        type_ = table.type(op.results[0].type)
        size = buffer_size(type_).bytes
        reserved = reserved_bytes(type_)
        assert max(places) + reserved <= total
        # The hardware's unit of LDS is larger than what is missing.
        assert max(places) + size <= -(-total // 128) * 128
        assert len({place // PARTITION for place in places}) == len(places)
        taken += [(place, place + size) for place in places]
    for (_, end), (start, _) in itertools.pairwise(sorted(taken)):
        assert end <= start


@pytest.mark.parametrize(
    "values",
    [
        [("3x512x32", TWO), ("3x512x32", TWO)],
        [("512x64", SHORT), ("512x64", SHORT)],
        [("512x64", SHORT), ("128x32", PLAIN), ("32x32", PLAIN)],
        [("32x32", PLAIN), ("512x64", SHORT), ("3x512x32", TWO)],
    ],
)
def test_known_cases(values):
    module = aligned(module_of(values))
    found = allocation_in_child(str(module))
    assert found is not None, "Triton's allocation does not end"
    check(module, *found)


@pytest.mark.skipif(
    host.capabilities()["amd-partition-placement"].available, reason="this Triton's always ends"
)
def test_without_it_triton_never_ends():
    assert allocation_in_child(module_of([("3x512x32", TWO), ("3x512x32", TWO)])) is None


def random_values(seed):
    source = random.Random(seed)
    encodings = [TWO, TWO, FOUR, SHORT, PLAIN]
    values = []
    for _ in range(source.randrange(2, 5)):
        encoding = source.choice(encodings)
        count = source.choice([1, 1, 2, 3])
        shape = "512x64" if encoding is SHORT else source.choice(["128x32", "512x32", "256x64"])
        values.append((shape if count == 1 else f"{count}x{shape}", encoding))
    return values


def test_random_values():
    refused = 0
    seeds = 400 if NIGHTLY else 25
    for seed in range(seeds):
        values = random_values(seed)
        try:
            module = aligned(module_of(values))
        except PassError as error:
            refused += "pip install 'triton>=3.9'" in error.notes
            continue
        found = allocation_in_child(str(module))
        assert found is not None, values
        if found[1] <= LDS:
            check(module, *found)
    assert refused < seeds / 2


def offsets_of_model(text):
    """What Triton is expected to do: offsets and total, or ``None`` if it does not end."""
    try:
        found = allocate(
            parse(text), partition_size=PARTITION, features=host.features(), as_triton=True
        )
    except VerifyError:
        return None
    (function,) = found.functions.values()
    places = {}
    for buffer in function.buffers:
        places.setdefault(buffer.op, []).append(buffer.offset)
    return [*places.values()], found.total


def test_the_model_of_triton_is_exact():
    # Where it ends and where not, and each offset: what is aligned is chosen by it.
    for seed in range(600 if NIGHTLY else 20):
        text = module_of(random_values(seed))
        assert allocation_in_child(text) == offsets_of_model(text), text


def test_what_is_right_is_left_alone():
    for values in ([("128x32", TWO), ("128x32", TWO)], [("512x128", TWO)], [("64x64", PLAIN)]):
        assert not aligned(module_of(values)).is_changed


def test_what_cannot_be_mended_is_refused():
    # A group less than one byte of padding for each of 128: nothing that is aligned helps.
    many = partitioned(2, 128, "[64:+4] {order = [1, 0], shape = [8, 64]}")
    with pytest.raises(PassError, match=r"Triton reserves 139136 bytes .* takes 139256"):
        aligned(module_of([("2048x64", many)]))


CALLED = """
tt.func private @called(%q: !tt.ptr<f16>) attributes {noinline = true} {
  %0 = ttg.local_alloc : () -> !ttg.memdesc<512x128xf16, #e0, #smem, mutable>
  %s = tt.splat %q : !tt.ptr<f16> -> tensor<512x128x!tt.ptr<f16>, #b>
  %v = ttg.local_load %0 : !ttg.memdesc<512x128xf16, #e0, #smem, mutable> -> tensor<512x128xf16, #b>
  tt.store %s, %v : tensor<512x128x!tt.ptr<f16>, #b>
  tt.return
}
"""


def _partitions(start, size):
    return frozenset(range(start // PARTITION, (start + size - 1) // PARTITION + 1))


def test_a_called_function_starts_at_a_partition():
    text = module_of([("5x512x32", partitioned(2))], also=CALLED, call="called")
    before = allocation_in_child(text)
    after = allocation_in_child(str(aligned(text)))
    # Buffers of 64 KiB in memory that starts at two and a half partitions: both touch the fourth.
    assert before[0][0] == [0, PARTITION]
    found = {_partitions(place, PARTITION) for place in after[0][0]}
    assert len(found) == 2
    assert frozenset.intersection(*found) == frozenset()


def compile_gluon(name):
    import partitioned_kernels
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    source = GluonASTSource(
        getattr(partitioned_kernels, name), {"x_ptr": "*fp16", "y_ptr": "*fp16"}, {}, {}
    )
    return triton.compile(source, target=GPUTarget("hip", "gfx1250", 32), options={"num_warps": 4})


@pytest.fixture
def installed(fresh_triton_cache):
    was_installed = plugin.is_installed()
    plugin.install()
    yield
    if not was_installed:
        plugin.uninstall()


def test_the_environment_leaves_it_to_triton(monkeypatch):
    text = module_of([("512x64", SHORT)])
    plugin.own_passes.cache_clear()
    assert "{alignment = 128 : i32}" in str(plugin.run_passes(text))
    monkeypatch.setenv("TRITON_EXT_LDS", "host")
    plugin.own_passes.cache_clear()
    assert not plugin.run_passes(text).is_changed
    monkeypatch.undo()
    plugin.own_passes.cache_clear()


def test_an_error_in_a_compile_names_the_way_out():
    many = partitioned(2, 128, "[64:+4] {order = [1, 0], shape = [8, 64]}")
    with pytest.raises(PassError) as caught:
        plugin.run_passes(module_of([("2048x64", many)]))
    assert "TRITON_EXT_LDS=host leaves this to Triton's own pass" in caught.value.notes


def test_a_gluon_kernel_compiles(installed):
    kernel = compile_gluon("two_values")
    assert kernel.metadata.shared <= LDS
    # Both values, in two partitions each.
    assert len(re.findall(r"local_alloc", kernel.asm["ttgir"])) == 2
    assert "ds_load" in kernel.asm["amdgcn"]


@pytest.mark.skipif(
    not host.capabilities()["amd-partition-placement"].available,
    reason="barriers are placed inside of the lowering",
)
def test_barriers_of_triton_ignore_offsets():
    # Were they read, offsets of ours could be handed to a compile (docs/shared-memory.md).
    allocated = barrier_case()
    places = re.findall(r"allocation.offset = (\d+)", allocated)
    assert places == ["0", "8192"]
    expected = barriers(allocated)
    assert expected == 2
    assert barriers(allocated.replace("offset = 8192", "offset = 0")) == expected
    assert barriers(allocated.replace("offset = 8192", "offset = 65536")) == expected
    assert barriers(re.sub(r"allocation.offset = \d+ : i32", "other = 1 : i32", allocated)) == 0


def test_bytes_that_triton_does_not_reserve_are_free(installed):
    kernel = compile_gluon("short_values")
    # One of them starts a partition where Triton would not end otherwise.
    alignments = re.findall(r"local_alloc .*alignment = (\d+)", kernel.asm["ttgir"])
    assert len(alignments) == 2
    assert all(int(alignment) % 128 == 0 for alignment in alignments)
    assert kernel.metadata.shared <= LDS
