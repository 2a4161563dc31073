"""Random encodings that every host accepts, each with a shape."""

from __future__ import annotations

from dataclasses import replace

from triton_ext.errors import VerifyError
from triton_ext.ir import encodings as enc

_LINEAR = (enc.LinearEncoding, enc.GenericLinearEncoding)


def power(random, low: int, high: int) -> int:
    return 1 << random.randint(low, high)


def spread(random, bits: int, rank: int) -> tuple[int, ...]:
    """Powers of two whose product has this many bits."""
    sizes = [1] * rank
    for _ in range(bits):
        sizes[random.randrange(rank)] *= 2
    return tuple(sizes)


def some_order(random, rank: int) -> tuple[int, ...]:
    order = list(range(rank))
    random.shuffle(order)
    return tuple(order)


def steps(random, rank: int, count: int, *, zeros: bool) -> list[tuple[int, ...]]:
    """Bases that move through a grid by powers of two."""
    found, size = [], [1] * rank
    for _ in range(count):
        dim = random.randrange(rank + zeros)
        found.append(tuple(size[dim] if i == dim else 0 for i in range(rank)))
        if dim < rank:
            size[dim] *= 2
    return found


def cga(random, rank: int) -> tuple[tuple[int, ...], ...]:
    return tuple(steps(random, rank, random.choice([0, 0, 1, 2]), zeros=True))


def blocked(random, rank: int) -> enc.BlockedEncoding:
    return enc.BlockedEncoding(
        spread(random, random.randint(0, 4), rank),
        spread(random, random.choice([5, 6]), rank),
        spread(random, random.randint(0, 3), rank),
        some_order(random, rank),
        cga(random, rank),
    )


def mma(random) -> enc.NvidiaMmaEncoding:
    if random.random() < 0.5:
        rank = random.choice([2, 2, 3])
        warps = spread(random, random.randint(0, 3), rank)
        instr = (1,) * (rank - 2) + (16, 8)
        return enc.NvidiaMmaEncoding((2, 0), warps, instr, cga(random, rank))
    warps = (4 * random.choice([1, 2]), random.choice([1, 2]))
    return enc.NvidiaMmaEncoding((3, 0), warps, (16, power(random, 3, 8), 16), cga(random, 2))


def mfma(random) -> enc.AmdMfmaEncoding:
    rank = random.choice([2, 2, 3])
    instr = random.choice([(32, 32, 8), (16, 16, 16), (64, 4, 4), (4, 64, 4)])
    return enc.AmdMfmaEncoding(
        random.randint(1, 4),
        instr,
        instr[0] == 64 or random.random() < 0.5,
        spread(random, random.randint(0, 3), rank),
        random.choice([32, 64]) if instr[0] == 16 else 32,
        random.choice([(), (1,) * (rank - 2) + (power(random, 0, 1), 2)]),
        cga(random, rank),
    )


def wmma(random) -> enc.AmdWmmaEncoding:
    rank, version = random.choice([2, 2, 3]), random.randint(1, 3)
    instr = {1: [16], 2: [16, 32], 3: [4, 32, 64, 128]}[version]
    # Without bases and CTAs the text does not tell the rank, which is then 2.
    tiles = steps(random, rank, random.randint(rank - 2, 4), zeros=False)
    registers = [tiles.pop(random.randrange(len(tiles))) for _ in range(len(tiles) // 2)]
    return enc.AmdWmmaEncoding(
        version,
        random.random() < 0.5,
        tuple(tiles),
        tuple(registers),
        (16, 16, random.choice(instr)),
        cga(random, rank),
        rank,
    )


def dot_operand(random, parent) -> enc.DotOperandEncoding:
    index, width = random.randint(0, 1), 0
    if isinstance(parent, enc.NvidiaMmaEncoding):
        width = power(random, 0, 3)
        index = 0 if parent.version[0] == 3 else index
    elif isinstance(parent, enc.AmdMfmaEncoding):
        width = power(random, 0, 4)
    elif isinstance(parent, enc.AmdWmmaEncoding):
        width = random.choice({1: [8, 16], 2: [4, 8, 16], 3: [1, 2, 4, 8, 16]}[parent.version])
    return enc.DotOperandEncoding(index, parent, width)


def linear(random, rank: int) -> enc.LinearEncoding:
    layout = blocked(random, rank).to_linear_layout((16,) * rank)
    return enc.LinearEncoding(*(layout.in_bases(n) for n in ("register", "lane", "warp", "block")))


def generic_linear(random, rank: int) -> enc.GenericLinearEncoding:
    """A linear encoding whose warps are swizzled: no element is lost by an XOR with another's."""
    source = linear(random, rank)
    others = (*source.reg_bases, *source.lane_bases)
    warps = []
    for warp in source.warp_bases:
        other = random.choice([(0,) * rank, *others])
        warps.append(tuple(a ^ b for a, b in zip(warp, other, strict=True)))
    return enc.GenericLinearEncoding(
        source.reg_bases, source.lane_bases, tuple(warps), source.block_bases
    )


def swizzled(random, rank: int) -> enc.SwizzledSharedEncoding:
    return enc.SwizzledSharedEncoding(
        power(random, 0, 4),
        power(random, 0, 3),
        power(random, 0, 4),
        some_order(random, rank),
        cga(random, rank),
    )


def nvmma(random) -> enc.NvmmaSharedEncoding:
    rank = random.choice([2, 2, 3, 4])
    swizzle, bits = random.choice([0, 32, 64, 128]), power(random, 3, 6)
    fp4 = (swizzle, bits) == (128, 8) and random.random() < 0.5
    return enc.NvmmaSharedEncoding(
        swizzle, bits, rank, random.random() < 0.4, fp4, cga(random, rank)
    )


def padded(random, rank: int) -> enc.PaddedSharedEncoding:
    """Of a shape that the CTAs divide."""
    bases = cga(random, rank)
    shape = tuple(power(random, 2, 6) for _ in range(rank))
    pair = (power(random, 2, 6), power(random, 0, 3))
    return enc.PaddedSharedEncoding.with_identity_for(
        (pair,), shape, some_order(random, rank), bases
    )


def tensor_memory(random) -> enc.TensorMemoryEncoding:
    """With the CTA pairs that two_ctas asks for."""
    two_ctas = random.random() < 0.4
    bases = cga(random, 2)
    if two_ctas:
        bases = ((1, 0), *((2 * m, n) for m, n in bases))
    padded = random.random() < 0.2
    stride = 1 if padded else power(random, 0, 2)
    block = (random.choice([64, 128]), power(random, 1, 8))
    return enc.TensorMemoryEncoding(block, stride, bases, two_ctas, padded)


def shared_linear(random, rank: int) -> enc.SharedLinearEncoding:
    """The bases of a swizzled buffer in another order."""
    size = tuple(power(random, 2, 5) for _ in range(rank))
    source = replace(swizzled(random, rank), cga_layout=())
    offsets = list(source.to_linear_layout(size).in_bases("offset"))
    split = [offsets.pop() for _ in range(random.choice([0, 0, 1]))]
    random.shuffle(offsets)
    return enc.SharedLinearEncoding(tuple(offsets), tuple(split), power(random, 4, 7))


KINDS = {
    "blocked": lambda random: blocked(random, random.choice([1, 2, 2, 3])),
    "slice": lambda random: enc.SliceEncoding(
        random.randint(0, 1), random.choice([mma, mfma, lambda r: blocked(r, 3)])(random)
    ),
    "nvidia_mma": mma,
    "amd_mfma": mfma,
    "amd_wmma": wmma,
    "dot_blocked": lambda random: dot_operand(random, blocked(random, random.choice([2, 3]))),
    "dot_mma": lambda random: dot_operand(random, mma(random)),
    "dot_mfma": lambda random: dot_operand(random, mfma(random)),
    "dot_wmma": lambda random: dot_operand(random, wmma(random)),
    "linear": lambda random: linear(random, random.choice([1, 2, 2, 3])),
    "generic_linear": lambda random: generic_linear(random, random.choice([1, 2, 2, 3])),
    "swizzled_shared": lambda random: swizzled(random, random.choice([1, 2, 2, 3])),
    "nvmma_shared": nvmma,
    "shared_linear": lambda random: shared_linear(random, random.choice([1, 2, 2, 3])),
    "tensor_memory": tensor_memory,
    "tensor_memory_scales": lambda random: enc.TensorMemoryScalesEncoding(cga(random, 2)),
    "padded_shared": lambda random: padded(random, random.choice([1, 2, 2, 3])),
}


def some_shape(random, encoding) -> tuple[int, ...]:
    """A shape of the encoding's rank."""
    if isinstance(encoding, enc.SharedLinearEncoding):
        return tuple(size for _, size in encoding.linear_layout.out_dims)
    if isinstance(encoding, enc.TensorMemoryEncoding):
        return power(random, 6, 10), power(random, 0, 9)
    rank = getattr(encoding, "given_rank", None) or encoding.rank
    low = 2 if isinstance(encoding, (enc.NvmmaSharedEncoding, *_LINEAR)) else 0
    # The host divides by the number of K tiles.
    low = 3 if isinstance(encoding, enc.DotOperandEncoding) else low
    # One TMA message has at most 256 elements a side.
    high = 10 if isinstance(encoding, enc.NvmmaSharedEncoding) else 8
    return tuple(power(random, low, high) for _ in range(rank))


def has_layout(encoding, shape) -> bool:
    """Whether the encoding is one for the shape."""
    try:
        encoding.to_linear_layout(shape)
    except VerifyError:
        return False
    return True
