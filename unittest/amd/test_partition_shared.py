"""``triton-ext-partition-shared``: only encodings change, products stay, waves meet less often."""

from __future__ import annotations

import os
import random
import re

import pytest

triton = pytest.importorskip("triton")
np = pytest.importorskip("numpy")

from partitioned_matmuls import (  # noqa: E402
    Matmul,
    descriptor,
    llvm_ir,
    product,
    random_matmul,
    wavefronts_of,
)
from partitioned_modules import allocation_in_child  # noqa: E402
from triton_ext import host, plugin  # noqa: E402
from triton_ext.backends.amd.passes.partition_shared import PartitionShared  # noqa: E402
from triton_ext.ir import parse  # noqa: E402
from triton_ext.ir.aliases import AliasTable  # noqa: E402
from triton_ext.ir.types import MemDescType, TensorDescType, TensorType  # noqa: E402
from triton_ext.passes import PassManager  # noqa: E402

NIGHTLY = os.environ.get("TRITON_EXT_NIGHTLY") == "1"
PARTITION, LDS = 65536, 5 * 65536

pytestmark = pytest.mark.skipif(
    not host.capabilities()["amd-partitioned-shared"].available, reason="no partitioned values"
)

GAIN = re.compile(r"gets .*: (\d+) wavefronts instead of (\d+)$")


def partitioned(text, **options):
    """The module behind our pass, for the installed Triton, and what it said."""
    module = parse(text)
    report = PassManager([PartitionShared(**options)], host_features=host.features).run(module)
    module.verify()
    return module, [remark.message for remark in report.remarks]


def without_encodings(module):
    """Every operation with its values, attributes and types, encodings left out."""
    types = AliasTable(module.aliases)
    numbers = {}

    def bare(text):
        type_ = types.type(text)
        if isinstance(type_, TensorType):
            return "tensor", type_.shape, type_.element
        if isinstance(type_, MemDescType):
            return "memdesc", type_.shape, type_.element, type_.mutable, type_.alloc_shape
        if isinstance(type_, TensorDescType):
            return "tensordesc", type_.shape, type_.element
        return text

    found = []
    for op in module.walk():
        arguments = [arg for region in op.regions for block in region.blocks for arg in block.args]
        for value in (*op.results, *arguments):
            numbers[value] = len(numbers)
        attributes = {k: v for k, v in op.attributes.items() if k not in ("alignment", "value")}
        found.append(
            (
                op.name,
                [numbers[value] for value in op.operands],
                [(numbers[value], bare(value.type)) for value in (*op.results, *arguments)],
                attributes if op.name != "tt.func" else {},
            )
        )
    return found


def check_allocation(text):
    """Fails unless Triton's own allocation ends, fits, and keeps partitions apart."""
    found = allocation_in_child(text)
    assert found is not None, "Triton's allocation does not end"
    offsets, total = found
    assert total <= LDS
    for places in offsets:
        assert len({place // PARTITION for place in places}) == len(places)
    return offsets


def test_random_matmuls_change_in_encodings_only():
    changed = 0
    for seed in range(400 if NIGHTLY else 8):
        case = random_matmul(seed)
        before = parse(str(case))
        after, said = partitioned(str(case))
        assert without_encodings(after) == without_encodings(before), case
        for message in said:
            gain = GAIN.search(message)
            others = ("stays in one partition", "aligned to a partition", "are aligned:")
            assert gain is not None or any(other in message for other in others), message
            assert gain is None or int(gain[1]) < int(gain[2])
        if "#ttg.partitioned_shared" in str(after):
            changed += 1
            offsets = check_allocation(str(after))
            assert any(len(places) > 1 for places in offsets)
        else:
            assert str(after).count("#ttg.padded_shared") or not after.is_changed
    assert changed > 3


CASES = [
    Matmul(),
    Matmul(m=64, warps=((0, 1), (0, 2), (1, 0)), stages=1),
    Matmul(a_layout="swizzled", b_layout="swizzled", by_tdm=False, b_is_nk=False),
]
if NIGHTLY:
    CASES += [
        Matmul(warps=((1, 0), (0, 1)), k=32),
        Matmul(m=256, n=64, warps=((1, 0), (2, 0)), b_layout="plain"),
        Matmul(a_layout="plain", b_layout="padded", by_tdm=False, k=32, stages=3),
    ]


def run(case, text):
    llir, shared = llvm_ir(text)
    assert shared <= LDS
    found = product(
        llir, case.m, case.n, 2 * case.k, b_is_nk=case.b_is_nk, num_warps=case.num_warps
    )
    assert np.array_equal(found[1], found[2])
    return found[0]


@pytest.mark.parametrize("case", CASES)
def test_lowered_products_are_right_and_waves_meet_as_predicted(case):
    before = run(case, str(case))
    module, said = partitioned(str(case))
    assert any(GAIN.search(message) for message in said)
    after = run(case, str(module))
    gains = [GAIN.search(message) for message in said]
    if not (case.by_tdm and case.b_is_nk):
        # Stores of waves and transposing reads are counted by the model only.
        assert wavefronts_of(after) < wavefronts_of(before)
        return
    assert all(gains), said
    # Both iterations read what is counted once. Without partitions the model takes a buffer to lie
    # in one of them; those that are large enough to lie in two have to be looked at as one.
    assert wavefronts_of(before, LDS) == 2 * sum(int(gain[2]) for gain in gains)
    assert wavefronts_of(after) == 2 * sum(int(gain[1]) for gain in gains)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHTLY, reason="takes minutes")
def test_random_lowered_products_are_right():
    for seed in range(60):
        case = random_matmul(1000 + seed)
        run(case, str(partitioned(str(case))[0]))


# ---- capacity

#: What each wave holds of the result, and where.
WAVES = re.compile(r"ctaLayout = \{.*?\}")


# Partitions do not fit, and padding alone has the same gain in either order of the waves.
@pytest.mark.parametrize(("seed", "capacity"), [(9, 38776), (2, 13432)])
def test_waves_stay_where_no_partitions_fit(seed, capacity):
    text = str(random_matmul(seed))
    module, said = partitioned(text, capacity=capacity)
    assert "#ttg.partitioned_shared" not in str(module)
    assert WAVES.findall(str(module)) == WAVES.findall(text)
    assert any(GAIN.search(message) for message in said)
    assert any(f"bytes of LDS, of {capacity}" in message for message in said)


def test_random_capacities():
    least = 0
    for seed in range(60 if NIGHTLY else 6):
        text = str(random_matmul(seed))
        _, before = allocation_in_child(text)
        capacity = random.Random(seed).randrange(before, 3 * before)
        module, said = partitioned(text, capacity=capacity)
        found = allocation_in_child(str(module))
        assert found is not None
        assert found[1] <= capacity, seed
        gains = [gain for gain in map(GAIN.search, said) if gain is not None]
        assert all(int(gain[1]) < int(gain[2]) for gain in gains)
        least += bool(gains)
    assert least > 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"arch": "gfx9999"}, "expected a GPU whose LDS is known .*gfx1250.* found 'gfx9999'"),
        ({"capacity": -5}, "expected bytes of LDS, or 0 for all of it, .* found -5"),
    ],
)
def test_options_that_mean_nothing(options, words):
    with pytest.raises(ValueError, match=words):
        PartitionShared(**options)


# ---- in a compile


@pytest.fixture
def installed(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    was_installed = plugin.is_installed()
    yield
    if not was_installed:
        plugin.uninstall()


def compiled(source, passes=True):
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("hip", "gfx1250", 32)
    if not passes:
        return triton.compile(source, target=target, options={"num_warps": 4})
    with plugin.extra_passes("ttgir", "triton-ext-partition-shared"):
        return triton.compile(source, target=target, options={"num_warps": 4})


def bases(llir):
    """Where buffers of partitioned values lie: pairs of addresses that a wave chooses from."""
    return re.findall(r"@global_smem(?:, i32 (\d+)\))?", llir)


def test_a_gluon_matmul(installed):
    from partitioned_kernels_matmul import gluon_source

    before, after = compiled(gluon_source(), passes=False), compiled(gluon_source())
    assert after.asm["hsaco"]
    assert "#ttg.partitioned_shared" in after.asm["ttgir"]
    assert "#ttg.partitioned_shared" not in before.asm["ttgir"]
    count = {}
    for name, kernel in (("before", before), ("after", after)):
        machine, found, right = product(kernel.asm["llir"], 128, 128, 192)
        assert np.array_equal(found, right)
        count[name] = wavefronts_of(machine)
    # 128 for each of the two operands in each of the 3 steps, and half of that.
    assert count == {"before": 3 * 256, "after": 3 * 128}
    # Two partitions of LDS are named in the code.
    places = {int(place or 0) // PARTITION for place in bases(after.asm["llir"])}
    assert places == {0, 1}


def test_descriptor_arguments_have_the_padding_of_the_pieces(installed):
    from partitioned_kernels_matmul import jit_source

    kernel = compiled(jit_source())
    assert kernel.asm["hsaco"]
    assert re.search(r"tensordesc<128x64xf16, #shared\d?>", kernel.asm["ttgir"])
    assert "#ttg.partitioned_shared" in kernel.asm["ttgir"]
    entries = kernel.metadata.tensordesc_meta

    def arguments(entries):
        def make(a, b, c):
            found = []
            for entry, at in zip(entries, (a, b), strict=True):
                found += [descriptor(entry, at, (128, 192)), 128, 192, 192, 1]
            return [*found, c, 192]

        return make

    llir = kernel.asm["llir"]
    _, found, right = product(llir, 128, 128, 192, arguments=arguments(entries))
    assert np.array_equal(found, right)
    # As Triton's metadata would have it, TDM writes elements where nobody reads them.
    bare = [{k: v for k, v in e.items() if k != "interval_padding_pairs"} for e in entries]
    with pytest.raises(AssertionError, match="nobody wrote"):
        product(llir, 128, 128, 192, arguments=arguments(bare))
