"""Encodings: text, spellings of all hosts, and rules."""

from __future__ import annotations

import dataclasses
import re

import pytest
from encodings_host import LayoutHost
from encodings_random import KINDS
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from triton_ext.errors import ParseError, TritonExtError, VerifyError
from triton_ext.ir import encodings as enc
from triton_ext.ir import parse
from triton_ext.ir.aliases import AliasTable
from triton_ext.ir.attribute_values import OpaqueAttr, parse_attribute

BLOCKED = (
    "#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], "
    "order = [1, 0]}>"
)
MMA = (
    "#ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [4, 1], "
    "instrShape = [16, 8]}>"
)
SWIZZLED = "#ttg.swizzled_shared<{vec = 4, perPhase = 1, maxPhase = 4, order = [1, 0]}>"

#: Every attribute, in the spelling of some host, with the class it becomes.
TEXTS = [
    (BLOCKED, enc.BlockedEncoding),
    (BLOCKED.replace("}>", ", CGALayout = [[0, 1]]}>"), enc.BlockedEncoding),
    (
        BLOCKED.replace("}>", ", CTAsPerCGA = [2, 1], CTASplitNum = [1, 1], CTAOrder = [1, 0]}>"),
        enc.BlockedEncoding,
    ),
    (f"#ttg.slice<{{dim = 0, parent = {BLOCKED}}}>", enc.SliceEncoding),
    (f"#ttg.dot_op<{{opIdx = 0, parent = {MMA}, kWidth = 2}}>", enc.DotOperandEncoding),
    (f"#ttg.dot_op<{{opIdx = 1, parent = {BLOCKED}}}>", enc.DotOperandEncoding),
    (MMA, enc.NvidiaMmaEncoding),
    (
        "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], "
        "CGALayout = [[0, 1]], instrShape = [16, 64, 16]}>",
        enc.NvidiaMmaEncoding,
    ),
    (
        "#ttg.amd_mfma<{version = 4, warpsPerCTA = [2, 2], instrShape = [16, 16, 16], "
        "isTransposed = true, CGALayout = [[0, 1]], tilesPerWarp = [2, 2], elementBitWidth = 64}>",
        enc.AmdMfmaEncoding,
    ),
    (
        "#ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {register = [[0, 1]], "
        "warp = [[0, 2], [1, 0]]}, CGALayout = [[0, 1]], instrShape = [16, 16, 32]}>",
        enc.AmdWmmaEncoding,
    ),
    (
        "#ttg.amd_wmma<{version = 3, isTranspose = true, warpsPerCTA = [2, 2], "
        "instrShape = [16, 16, 128]}>",
        enc.AmdWmmaEncoding,
    ),
    (
        "#ttg.linear<{register = [[0, 1]], lane = [[0, 2], [0, 4], [0, 8], [0, 16], [0, 32]], "
        "warp = [[1, 0], [2, 0]], block = [[0, 0]]}>",
        enc.LinearEncoding,
    ),
    (
        "#ttg.generic_linear<{register = [[0, 1]], lane = [[0, 2], [0, 4], [0, 8], [0, 16], "
        "[0, 32]], warp = [[1, 32], [2, 0]], block = []}>",
        enc.GenericLinearEncoding,
    ),
    (SWIZZLED, enc.SwizzledSharedEncoding),
    (SWIZZLED.replace("swizzled", "amd_rotating"), enc.AmdRotatingSharedEncoding),
    (
        "#ttg.padded_shared<[64:+4, 128:+8] {order = [1, 0], shape = [16, 64]}>",
        enc.PaddedSharedEncoding,
    ),
    (
        "#ttg.padded_shared<[64:+4] {offset = [[0, 1], [0, 2], [2, 0], [1, 0]], block = [[4, 0]]}>",
        enc.PaddedSharedEncoding,
    ),
    (
        "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>",
        enc.NvmmaSharedEncoding,
    ),
    (
        "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 8, "
        "fp4Padded = true, CGALayout = [[0, 0]]}>",
        enc.NvmmaSharedEncoding,
    ),
    (
        "#ttg.nvmma_shared<{swizzlingByteWidth = 32, transposed = true, elementBitWidth = 16, "
        "rank = 3}>",
        enc.NvmmaSharedEncoding,
    ),
    (
        "#ttg.shared_linear<{offset = [[0, 1], [1, 0]], block = [[2, 0]]}, alignment = 32>",
        enc.SharedLinearEncoding,
    ),
    (
        "#ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, "
        f"partitionLayout = {SWIZZLED}}}>",
        enc.PartitionedSharedEncoding,
    ),
    (
        "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1>",
        enc.TensorMemoryEncoding,
    ),
    (
        "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1, CTASplitN = 2>",
        enc.TensorMemoryEncoding,
    ),
    (
        "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1, "
        "CGALayout = [[1, 0]], twoCTAs = true>",
        enc.TensorMemoryEncoding,
    ),
    ("#ttng.tensor_memory_scales_encoding<>", enc.TensorMemoryScalesEncoding),
    ("#ttng.tensor_memory_scales_encoding<CGALayout = [[0, 0]]>", enc.TensorMemoryScalesEncoding),
    ("#ttg.shared_memory", enc.SharedMemorySpace),
    ("#ttng.tensor_memory", enc.TensorMemorySpace),
]


@pytest.mark.parametrize(("text", "kind"), TEXTS)
def test_text_is_kept_and_legal(text, kind):
    found = parse_attribute(text)
    assert type(found) is kind
    assert str(found) == text
    found.verify()
    assert parse_attribute(str(found)) == found
    assert hash(parse_attribute(text)) == hash(found)


def test_spellings_of_one_encoding_are_equal():
    counts = parse_attribute(
        BLOCKED.replace("}>", ", CTAsPerCGA = [2, 4], CTASplitNum = [2, 2], CTAOrder = [1, 0]}>")
    )
    bases = parse_attribute(BLOCKED.replace("}>", ", CGALayout = [[0, 1], [0, 0], [1, 0]]}>"))
    assert counts == bases
    split = parse_attribute(
        "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1, CTASplitN = 2>"
    )
    assert split.cga_layout == ((0, 1),)


@pytest.mark.parametrize(
    ("whole", "left_out"),
    [
        (
            "#ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [4, 1], "
            "instrShape = [16, 8]}>",
            "versionMinor = 0, ",
        ),
        (
            "#ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [4, 1], "
            "instrShape = []}>",
            ", instrShape = []",
        ),
        (
            "#ttg.amd_mfma<{version = 3, warpsPerCTA = [4, 1], instrShape = [32, 32, 8], "
            "isTransposed = false}>",
            ", isTransposed = false",
        ),
        (
            "#ttg.nvmma_shared<{swizzlingByteWidth = 64, transposed = false, "
            "elementBitWidth = 16}>",
            "transposed = false, ",
        ),
        (
            "#ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 0, "
            f"partitionLayout = {SWIZZLED}}}>",
            "partitionDim = 0, ",
        ),
    ],
)
def test_what_people_leave_out(whole, left_out):
    short = whole.replace(left_out, "")
    assert short != whole
    assert parse_attribute(short) == parse_attribute(whole)
    parse_attribute(short).verify()


def test_an_mma_without_an_instruction_shape_has_no_layout():
    mma = "#ttg.nvidia_mma<{versionMajor = 3, warpsPerCTA = [4, 1]}>"
    with pytest.raises(VerifyError, match="expected an 'instrShape'"):
        parse_attribute(mma).to_linear_layout((64, 64))
    operand = parse_attribute(f"#ttg.dot_op<{{opIdx = 0, parent = {mma}, kWidth = 2}}>")
    assert operand.to_linear_layout((64, 64)).in_dim_size("warp") == 4


def test_a_changed_encoding_keeps_the_hosts_spelling_where_it_says_so():
    wmma = parse_attribute(
        "#ttg.amd_wmma<{version = 3, isTranspose = true, warpsPerCTA = [2, 2], "
        "instrShape = [16, 16, 128]}>"
    )
    changed = dataclasses.replace(wmma, instr_shape=(16, 16, 64))
    assert str(changed) == str(wmma).replace("128", "64")
    spaced = parse_attribute(SWIZZLED.replace(", ", ",  "))
    assert str(spaced) == SWIZZLED.replace(", ", ",  ")
    assert str(dataclasses.replace(spaced, vec=8)) == SWIZZLED.replace("vec = 4", "vec = 8")


def test_corpus(corpus):
    """Every encoding of the corpus, behind an alias or inline, is read, legal and printed back."""
    kinds = set()
    for path in corpus:
        module = parse(path.read_text(), path.name)
        table = AliasTable(module.aliases)
        for name, raw in module.aliases.items():
            if not name.startswith("#loc"):
                found = table.attribute(name)
                assert found is not None
                kinds.add(type(found))
                found.verify()
                assert parse_attribute(raw, table)._text(table) == raw
                assert table.name_of(found) == name
    assert OpaqueAttr not in kinds
    assert len(kinds) >= 10


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(random=st.randoms(use_true_random=False), kind=st.sampled_from(sorted(KINDS)))
def test_random_encodings_round_trip(random, kind):
    encoding = KINDS[kind](random)
    encoding.verify()
    assert parse_attribute(str(encoding)) == encoding


@pytest.fixture(scope="module")
def printer():
    host = LayoutHost()
    yield host
    host.close()


def host_text(encoding, text: str) -> str:
    """A function with an argument that has this encoding, whose text may be another."""
    rank = getattr(encoding, "given_rank", None) or encoding.rank
    shape = "x".join(["512", *["4"] * (rank - 2), *["512"] * (rank > 1)])
    if isinstance(encoding, enc.SharedEncoding):
        if isinstance(encoding, enc.PaddedSharedEncoding):
            shape = "x".join(map(str, encoding.shape))
        if isinstance(encoding, enc.SharedLinearEncoding):
            shape = "x".join(str(size) for _, size in encoding.linear_layout.out_dims)
        bits = getattr(encoding, "element_bitwidth", 32)
        type_ = f"!ttg.memdesc<{shape}xi{bits}, {text}, #ttg.shared_memory>"
    elif isinstance(encoding, enc.TensorMemory):
        shape = "1024x1024"
        stride = getattr(encoding, "col_stride", 4)
        bits = max(8, 32 // max(1, stride))
        type_ = f"!ttg.memdesc<{shape}xi{bits}, {text}, #ttng.tensor_memory, mutable>"
    else:
        type_ = f"tensor<{shape}xf32, {text}>"
    return (
        f'module attributes {{"ttg.num-ctas" = {1 << len(encoding.cga_bases)} : i32}} {{\n'
        f"  tt.func private @f(%x: {type_})\n}}\n"
    )


def host_aliases(printer, encoding) -> dict[str, str]:
    """The aliases that the host prints for a value that has this encoding."""
    text = printer.text(host_text(encoding, str(encoding)))
    return {name: raw for name, raw in parse(text).aliases.items() if name != "#smem"}


@pytest.mark.parametrize(
    ("offset", "block", "is_legal"),
    [
        ("[1], [2]", "[4]", True),
        ("[1], [2]", "[0]", True),
        ("[1, 0], [0, 1]", "[4, 0], [2, 0]", True),
        ("[1], [4]", "[2]", False),
        ("[1], [2]", "[2]", False),
        ("[1, 0], [0, 1]", "[2, 0], [2, 0]", False),
    ],
)
def test_ctas_of_padded_layouts_lie_outside_of_each_other(host, printer, offset, block, is_legal):
    """Triton 3.7 and newer read others, and end their process for a type that has one."""
    text = f"#ttg.padded_shared<[4:+1] {{offset = [{offset}], block = [{block}]}}>"
    if not is_legal:
        encoding = parse_attribute(text)
        encoding.verify()
        with pytest.raises(VerifyError, match="expected bases "):
            encoding.to_linear_layout(encoding.shape)
        return
    encoding = parse_attribute(text)
    encoding.to_linear_layout(encoding.shape)
    host.needs_present_syntax()
    assert printer.text(host_text(encoding, text))


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(random=st.randoms(use_true_random=False))
def test_what_ends_the_hosts_process_is_refused(host, printer, kind, random):
    """One number of a legal encoding is changed: legal for us must not kill the host."""
    host.needs_present_syntax()
    encoding = KINDS[kind](random)
    text = str(encoding)
    assume(any(map(str.isdigit, text)))
    start, end = random.choice([match.span() for match in re.finditer(r"\d+", text)])
    text = text[:start] + str(random.choice([0, 1, 2, 3, 5, 6, 7, 12])) + text[end:]
    try:
        changed = parse_attribute(text)
        changed.verify()
        if kind == "padded_shared":
            # Triton reads the attribute alone.
            changed.to_linear_layout(changed.shape)
    except TritonExtError:
        return
    try:
        printer.text(host_text(encoding, text))
    except RuntimeError as error:
        # A refusal is fine: the shape or the number of CTAs may not fit.
        if "ended its process" in str(error):
            raise


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(random=st.randoms(use_true_random=False))
def test_host_prints_what_we_print(host, printer, kind, random):
    host.needs_present_syntax()
    encoding = KINDS[kind](random)
    # The parameter 'rank' of buffers is of 3.9.
    assume("rank = " not in str(encoding) or "3.9" in host.version or "wmma" in kind)
    aliases = host_aliases(printer, encoding)
    table = AliasTable(aliases)
    found = [table.attribute(name) for name in aliases]
    parent = getattr(encoding, "parent", encoding)
    assert encoding in found or parent in found
    for name, read in zip(aliases, found, strict=True):
        # Without its spelling, so that it is our own print that is compared.
        printed = dataclasses.replace(read)._text(table)
        # For WMMA the host leaves out what it needs to read the text again.
        left_out = r"(, )?warp = \[\]|, rank = 3" if "wmma" in kind else r"\Z"
        assert re.sub(left_out, "", printed) == re.sub(left_out, "", aliases[name])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BLOCKED.replace("[1, 0]}", "[1, 1]}"), "expected a permutation of 0 to 1 as 'order'"),
        (BLOCKED.replace("[1, 4]", "[1, 3]"), "expected powers of two in 'sizePerThread', found 3"),
        (BLOCKED.replace("[8, 4]", "[32]"), "expected 2 numbers in 'threadsPerWarp', found 1"),
        (
            BLOCKED.replace("}>", ", CGALayout = [[0, 2]]}>"),
            "expected the steps 1, 2, 4, ... of 'CGALayout' in dimension 1, found [2]",
        ),
        (
            f"#ttg.slice<{{dim = 2, parent = {BLOCKED}}}>",
            "expected 'dim' below the parent's rank 2, found 2",
        ),
        (f"#ttg.slice<{{dim = 0, parent = {SWIZZLED}}}>", "expected a distributed encoding"),
        (f"#ttg.dot_op<{{opIdx = 2, parent = {BLOCKED}}}>", "expected 0 or 1 as 'opIdx', found 2"),
        (f"#ttg.dot_op<{{opIdx = 0, parent = {MMA}}}>", "expected 'kWidth'"),
        (f"#ttg.dot_op<{{opIdx = 0, parent = {BLOCKED}, kWidth = 2}}>", "expected no 'kWidth'"),
        (
            "#ttg.amd_mfma<{version = 3, warpsPerCTA = [2, 2], instrShape = [8, 8, 4], "
            "isTransposed = true}>",
            "expected 'instrShape' with M x N of 32 x 32, 16 x 16, 64 x 4 or 4 x 64",
        ),
        (
            "#ttg.amd_wmma<{version = 3, isTranspose = true, ctaLayout = {warp = [[0, 2]]}, "
            "instrShape = [16, 16, 32]}>",
            "expected a 'ctaLayout' that reaches every tile",
        ),
        (
            "#ttg.linear<{register = [[1, 1], [0, 1]], lane = [], warp = [], block = []}>",
            "expected each basis of 'register' to move one dimension",
        ),
        (
            "#ttg.linear<{register = [[1], [4]], lane = [], warp = [], block = []}>",
            "expected bases that reach every element of their shape",
        ),
        (
            "#ttg.padded_shared<[3:+4] {order = [0], shape = [16]}>",
            "expected powers of two in 'interval', found 3",
        ),
        (
            "#ttg.padded_shared<[4:+4, 4:+8] {order = [0], shape = [16]}>",
            "expected each interval once",
        ),
        (
            "#ttg.partitioned_shared<{numPartitions = 1, numGroups = 4, partitionDim = 0, "
            f"partitionLayout = {SWIZZLED}}}>",
            "expected 2 or more as 'numPartitions', found 1",
        ),
        (
            "#ttg.partitioned_shared<{numPartitions = 2, numGroups = 3, partitionDim = 0, "
            f"partitionLayout = {SWIZZLED}}}>",
            "expected powers of two in 'numGroups', found 3",
        ),
        (
            "#ttg.partitioned_shared<{numPartitions = 2, numGroups = 4, partitionDim = 2, "
            f"partitionLayout = {SWIZZLED}}}>",
            "expected 'partitionDim' below the rank 2, found 2",
        ),
        (
            "#ttng.tensor_memory_encoding<blockM = 32, blockN = 64, colStride = 1>",
            "expected 'blockM' 64 or 128, found 32",
        ),
    ],
)
def test_verify(text, message):
    with pytest.raises(VerifyError) as error:
        parse_attribute(text).verify()
    assert message in str(error.value)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            BLOCKED.replace("}>", ", CGALayout = [[1, 1]]}>"),
            "expected each basis of 'CGALayout' to move one dimension, found (1, 1)",
        ),
        (MMA.replace("Major = 2", "Major = 1"), "expected 2 or 3 as 'versionMajor', found 1"),
        (
            "#ttg.linear<{register = [[1], [1]], lane = [], warp = [], block = []}>",
            "expected bases that reach no element twice",
        ),
        (SWIZZLED.replace("vec = 4", "vec = 3"), "expected powers of two in 'vec', found 3"),
        (
            "#ttg.nvmma_shared<{swizzlingByteWidth = 16, transposed = false, "
            "elementBitWidth = 16}>",
            "expected 'swizzlingByteWidth' 0, 32, 64 or 128, found 16",
        ),
        (
            "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1, "
            "CGALayout = [[0, 1]], twoCTAs = true>",
            "expected [1, 0] as the first basis of 'CGALayout' with twoCTAs",
        ),
        (
            BLOCKED.replace("}>", ", CGALayout = [[0, 1], [0, 1]]}>"),
            "expected each step in 'CGALayout' once, found (0, 1) twice",
        ),
        (
            "#ttg.amd_mfma<{version = 3, warpsPerCTA = [2, 2], instrShape = [16, 16]}>",
            "expected 3 numbers in 'instrShape', found 2",
        ),
        (
            "#ttg.amd_mfma<{version = 0, warpsPerCTA = [2, 2], instrShape = [16, 16, 4]}>",
            "expected 1 to 4 as 'version', found 0",
        ),
        (
            "#ttg.padded_shared<[2:+1] {offset = [[1, 0], [0, 1]], block = [[1, 0], [2, 0]]}>",
            "expected bases that reach every element of their shape once",
        ),
        (
            "#ttg.amd_rotating_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 1]}>",
            "expected a permutation of 0 to 1 as 'order', found [1, 1]",
        ),
        (
            "#ttg.partitioned_shared<{numPartitions = 2, numGroups = 2, partitionDim = 0, "
            "partitionLayout = #ttg.partitioned_shared<{numPartitions = 2, numGroups = 2, "
            f"partitionDim = 0, partitionLayout = {SWIZZLED}}}>}}>",
            "expected a 'partitionLayout' that is not partitioned itself",
        ),
    ],
)
def test_what_a_release_reads_may_have_no_layout(text, message):
    """3.9.0 reads each of these, or 3.6.0 does; none can be lowered."""
    encoding = parse_attribute(text)
    encoding.verify()
    with pytest.raises(VerifyError) as error:
        encoding.to_linear_layout((64,) * (encoding.rank or 2))
    assert message in str(error.value)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("#ttg.blocked<{order = [0]}>", 15, "expected the parameter 'sizePerThread'"),
        ("#ttg.slice<{dim = x, parent = #ttg.shared_memory}>", 13, "unsigned integer for 'dim'"),
        ("#ttg.slice<{dim = 0, dim = 1}>", 22, "expected 'dim' once"),
        ("#ttg.slice<{dim = 0, parent = #blocked}>", 31, "undefined attribute alias '#blocked'"),
        ("#ttg.slice<{dim = 0", 20, "expected '}', found the end"),
        ("#ttg.padded_shared<[4:4] {}>", 23, "expected '+', found '4] {}>'"),
        (SWIZZLED.replace("4, per", "-4, per"), 23, "expected an unsigned integer for 'vec'"),
        (SWIZZLED + " x", len(SWIZZLED) + 2, "expected the end, found 'x'"),
    ],
)
def test_malformed_text(text, column, message):
    with pytest.raises(ParseError) as error:
        parse_attribute(text)
    assert message in error.value.message
    assert (error.value.line, error.value.column) == (1, column)


def test_a_parameter_that_nobody_knows_keeps_the_text():
    text = SWIZZLED.replace("vec = 4", "vector = 4")
    found = parse_attribute(text)
    assert found == OpaqueAttr(text)
    later = SWIZZLED.replace("}>", ", fancy = #ttg.new<{x = 1}>}>")
    assert parse_attribute(later) == OpaqueAttr(later)


def test_what_is_not_known_of_an_encoding_is_named():
    found = parse_attribute(
        "#ttg.swizzled_shared<{vek = 1, perPhase = 1, maxPhase = 1, order = [0], colour = 3}>"
    )
    assert isinstance(found, OpaqueAttr)
    assert (
        found.why == "'#ttg.swizzled_shared' has no 'vek'; '#ttg.swizzled_shared' has no 'colour'"
    )
    assert parse_attribute("#dialect.unknown<a = 1>").why == ""
