"""Every operation of the installed Triton that touches memory is known where it matters.

The operations, types and attributes are those that the host's own parser knows.  Pieces that reason
about shared memory (LDS), tensor memory, or counters of what runs on are the allocator, the
analysis of waits, the two verifiers and the emulator.  Each of them has to know an operation, or to
refuse it with an error that names it.  Silence fails, unless :data:`EXEMPT` gives a reason.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("triton")
from host_dialects import HostDialects, host_dialects, spellings
from triton_ext.analysis.allocation.scratch import SCRATCH_OPERATIONS
from triton_ext.analysis.memory_effects import AFTER, Row, atomic_barrier, known_names, row_of
from triton_ext.backends.amd.analysis.async_events import KNOWN, AsyncEvents
from triton_ext.backends.amd.analysis.lds_use import ARRIVALS, MBARRIER_WAITS, runs_on_apart
from triton_ext.backends.amd.analysis.target import Lowering, Target
from triton_ext.emulator import EmulationError, Program, interpreter
from triton_ext.errors import TritonExtError
from triton_ext.ir import Module, parse, parse_type
from triton_ext.ir.encodings import READERS
from triton_ext.ir.type_slots import KNOWN_DIALECTS
from triton_ext.ir.types import OpaqueType
from triton_ext.passes.shared_memory import allocation_of

#: What a piece passes over in silence, and why that is right.
EXEMPT = {
    "allocator": {
        "tt.atomic_store": "has no result to hand to other threads",
    },
    "waits": {
        "amdg.cluster_barrier_wait": "waits for CTAs, not for memory",
        "amdg.memory_counter_wait": "passed over, it makes other waits longer at most",
        "amdg.tdm_prefetch": "moves nothing to or from LDS, and takes part in no counter of a wait",
    },
    "verifier": {
        "ttng.clc_load_result": "an ordinary read: it ends before the next operation starts",
        "ttng.tc_gen5_commit": "only signals an mbarrier; the products themselves are named",
        "ttng.warp_group_dot_wait": "reads nothing itself; the products are named",
    },
    "emulator": {
        "ttg.barrier": "warps of a partition run in step; partitions meet at mbarriers",
        "ttg.local_barrier": "as ttg.barrier, which 3.6 calls so",
        "ttg.local_dealloc": "the allocator has given the memory away at the last use",
    },
    "attributes": {
        "amdg.amdgcn.set.fp8.clamping": "a flag of a module, no encoding",
        "tt.cache_policy": "about caches, which no piece models",
        "ttng.cache_policy": "about caches, which no piece models",
    },
    "encodings": {
        "triton.gpu.cga_encoding": "a parameter of other encodings, never printed alone",
        "triton.gpu.cta_encoding": "the same in 3.6",
    },
}
#: Words in the names of operations that start or await something that runs on.
RUNNING = {"async", "clc", "commit", "counter", "dot", "mma", "tdm", "tma", "wait"}
#: A text for each type.
TYPES = {
    "tt.ptr": "!tt.ptr<f16>",
    "tt.tensordesc": "!tt.tensordesc<tensor<64x64xf16>>",
    "ttg.async.token": "!ttg.async.token",
    "ttg.memdesc": "!ttg.memdesc<64xf16, #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1,"
    " order = [0]}>, #ttg.shared_memory, mutable>",
    "ttng.tensordesc_im2col": "!ttng.tensordesc_im2col<64x64xf16, #ttg.nvmma_shared<"
    "{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>>",
}
TARGETS = ("hip:gfx1250", "cuda:90")
NOTHING = interpreter._nothing


@pytest.fixture(scope="module")
def host() -> HostDialects:
    """The operations that the installed Triton's parser knows."""
    return host_dialects()


def silent(piece: str, names: set[str]) -> list[str]:
    """The names that are not exempt."""
    return sorted(names - EXEMPT[piece].keys())


def words(name: str) -> frozenset[str]:
    return frozenset(name.partition(".")[2].replace("_gen5_", "_").split("_"))


def row(name: str) -> Row:
    found = row_of(name)
    assert found is not None, name
    return found


def has_buffers(name: str) -> bool:
    return bool(row(name).buffers) or row(name).others is not None


def kernel(operation: str, target: str = TARGETS[0]) -> Module:
    """A kernel with an operation of a name, without operands."""
    return parse(
        'module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, '
        f'ttg.target = "{target}", "ttg.threads-per-warp" = 32 : i32}} {{\n'
        f'  tt.func public @f() {{\n    "{operation}"() : () -> ()\n    tt.return\n  }}\n}}\n'
    )


# ---- the listing itself


def test_every_dialect_is_listed(host):
    """Names that the strings of the library hold beside operations are not taken for some."""
    assert {"amdg.buffer_load", "tt.load", "ttg.local_load", "ttng.wait_barrier"} < host.operations
    assert host.operations.isdisjoint({"ttg.memdesc", "ttg.target", "tt.divisibility"})
    assert {name.partition(".")[0] for name in host.operations} <= KNOWN_DIALECTS


def test_every_operation_has_a_row(host):
    """One that is in no row of ``memory_effects`` may do anything, which no piece can work with."""
    assert sorted(host.operations - known_names()) == []


# ---- pieces


def test_the_allocator_knows_what_exchanges_results(host):
    """Threads that hand results to others use scratch memory: the operation ends with a barrier."""

    def exchanges(name: str) -> bool:
        barrier = row(name).barrier
        return "atomic" in words(name) or barrier is atomic_barrier or barrier is AFTER

    users = {name for name in host.operations if exchanges(name)}
    assert silent("allocator", users - SCRATCH_OPERATIONS) == []


def test_waits_count_what_runs_on(host):
    """Copies to or from LDS and waits for them are events, or end at an mbarrier."""
    running = {
        name
        for name in host.operations
        if name.startswith(("amdg.", "ttg."))
        and (row(name).waits or not words(name).isdisjoint(RUNNING))
    }
    assert silent("waits", running - KNOWN - MBARRIER_WAITS) == []


def test_the_verifier_names_what_it_does_not_follow(host):
    """A use of shared memory that runs on is followed, or named in a warning."""
    running = {
        name
        for name in host.operations
        if has_buffers(name) and not words(name).isdisjoint(RUNNING)
    }
    apart = {name for name in running if runs_on_apart(name)}
    assert silent("verifier", running - apart - KNOWN - ARRIVALS - MBARRIER_WAITS) == []
    assert apart.isdisjoint(KNOWN)


@pytest.mark.parametrize("target", TARGETS)
def test_the_emulator_runs_or_refuses(host, target, monkeypatch):
    """An operation that is not in the emulator's table is refused by its name."""
    # Operations without operands have no sizes.
    monkeypatch.setattr(interpreter, "_place_buffers", lambda *_: 0)
    table = interpreter._operations(target.partition(":")[0])
    for name in sorted(host.operations - table.keys()):
        with pytest.raises(EmulationError, match=f"does not support '{name}'"):
            Program(kernel(name, target))
    ignored = {name for name in host.operations & table.keys() if table[name] is NOTHING}
    touching = {n for n in ignored if has_buffers(n) or row(n).barrier or row(n).waits}
    assert silent("emulator", touching) == []


def waits(module: Module) -> None:
    AsyncEvents(module, Target.of_module(module), Lowering.of(None))


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("tt.newer_operation", allocation_of),
        ("ttg.newer_operation", allocation_of),
        ("ttng.newer_operation", allocation_of),
        ("amdg.newer_operation", allocation_of),
        ("amdg.async_newer_copy", waits),
        ("ttg.async_newer_copy", waits),
        ("ttg.newer_wait", waits),
        ("amdg.tdm_newer_copy", waits),
        ("amdg.newer_operation", Program),
    ],
)
def test_an_operation_of_a_newer_triton_is_refused_by_name(name, piece: Callable[[Module], object]):
    """The error names the operation and says what to do."""
    with pytest.raises(TritonExtError) as caught:
        piece(kernel(name))
    assert f"'{name}'" in str(caught.value)
    assert "note: " in str(caught.value)


# ---- types and attributes


def test_types_are_read(host):
    """Every type of the host is one that passes can ask about."""
    assert sorted(host.types - TYPES.keys()) == []
    for name in host.types:
        assert not isinstance(parse_type(TYPES[name]), OpaqueType), name


def test_attributes_are_read(host):
    """Every attribute of the host has a reader; so has every encoding that it registers."""
    assert silent("attributes", set(host.attributes - READERS.keys())) == []
    unread = {name for name in host.encodings if READERS.keys().isdisjoint(spellings(name))}
    assert silent("encodings", unread) == []
