"""Depthwise convolutions: which way they walk, and how their kernels are compiled.

Pure arithmetic: no tensors, no GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from triton_ext.ops.core.config_checks import power_problems, range_problems
from triton_ext.ops.core.device import H200
from triton_ext.ops.core.problem import ConvProblem

__all__ = [
    "MAX_UP",
    "DepthwiseConfig",
    "DepthwiseWgradConfig",
    "Walk",
    "configs",
    "expected_us",
    "expected_wgrad_us",
    "is_depthwise",
    "rank_wgrad",
    "ranking",
    "wgrad_configs",
]

_MAX_INT32 = (1 << 31) - 1
# Gradients of larger strides are left to the kernel that looks for each tap's pixel.
MAX_UP = 8
# Of a thread of the filter's gradient, out of 168.
_LIVE_REGISTERS = 116
# More are unrolled into kernels that nobody waits for.
_MOST_PIXELS, _MOST_SUMS = 32, 128
# More than is ever proposed, of a thread: elements of a pixel, of all pixels, and products.
_MOST_ELEMENTS, _MOST_OUTPUTS, _MOST_PRODUCTS = 16, 256, 1024
# Factors on the rate of copies: x and dy or y; what the filter's gradient reads again, from L2 for
# the most part; its parts.
_COPY_RATE, _REREAD_RATE, _PARTS_RATE = 4.0 / 3.5, 8.0 / 3.5, 3.0 / 3.5


def is_depthwise(problem: ConvProblem) -> bool:
    """Tells whether every channel has a filter of its own and gives one channel."""
    return 1 < problem.groups == problem.in_channels == problem.out_channels


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A way of the kernel over an input to an output of as many channels.

    Per spatial dimension, output pixel i sees through tap r the input pixel
    ``(i * step + r * dilation - low) / up``, where that is a whole number of the input.

    Attributes:
        batch: Images.
        channels: Of both.
        in_size: Input pixels.
        out_size: Output pixels.
        taps: Of the filter.
        step: Distance of what two neighbouring output pixels see.
        up: Distance of input pixels, in the same unit.
        dilation: Distance of taps, in the same unit.
        low: Padding in front, in the same unit; may be negative.
        is_flipped: Whether the filter is read from its end.
    """

    batch: int
    channels: int
    in_size: tuple[int, ...]
    out_size: tuple[int, ...]
    taps: tuple[int, ...]
    step: tuple[int, ...]
    up: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    is_flipped: bool

    @classmethod
    def forward(cls, problem: ConvProblem) -> Walk:
        """The walk over x that gives y."""
        return cls(
            batch=problem.batch,
            channels=problem.in_channels,
            in_size=problem.input_size,
            out_size=problem.output_size,
            taps=problem.filter_size,
            step=problem.stride,
            up=(1,) * problem.dims,
            dilation=problem.dilation,
            low=tuple(low for low, _ in problem.padding),
            is_flipped=False,
        )

    @classmethod
    def backward(cls, problem: ConvProblem) -> Walk:
        """The walk over dy that gives dx.

        Pixel i of dx sees through tap s the pixel (i + low - s * dilation) / stride of dy; taps
        counted from the end make that (i + s' * dilation - ((S - 1) * dilation - low)) / stride.
        """
        low = (
            (taps - 1) * dilation - pad
            for taps, dilation, (pad, _) in zip(
                problem.filter_size, problem.dilation, problem.padding, strict=True
            )
        )
        return cls(
            batch=problem.batch,
            channels=problem.in_channels,
            in_size=problem.output_size,
            out_size=problem.input_size,
            taps=problem.filter_size,
            step=(1,) * problem.dims,
            up=problem.stride,
            dilation=problem.dilation,
            low=tuple(low),
            is_flipped=True,
        )

    @property
    def dims(self) -> int:
        """Spatial dimensions."""
        return len(self.taps)

    @property
    def class_rows(self) -> tuple[int, ...]:
        """Rows of the output, ([D, [H]]), of each class of those that see the same taps."""
        return tuple(
            math.ceil(size / up) for size, up in zip(self.out_size[:-1], self.up, strict=False)
        )

    @property
    def classes(self) -> int:
        """Classes of rows of the output."""
        return math.prod(self.up[:-1])

    def grid(self, config: DepthwiseConfig) -> tuple[int, int, int]:
        """Returns how many programs a configuration takes."""
        positions = self.batch * math.prod(self.class_rows)
        positions *= math.ceil(self.out_size[-1] / config.qw)
        blocks = math.ceil(self.channels / config.block_c)
        return math.ceil(positions / config.block_p) * blocks, self.classes, 1

    def is_wide(self, pixel_stride: int, qw: int) -> bool:
        """Tells whether offsets in elements may need 64 bits; what is masked counts as well."""
        rows = [
            size + abs(low) + taps * dilation + step
            for size, low, taps, dilation, step in zip(
                self.in_size, self.low, self.taps, self.dilation, self.step, strict=True
            )
        ]
        rows[-1] += qw * self.step[-1]
        reads = (self.batch + 1) * math.prod(rows) * pixel_stride
        row = math.ceil(self.out_size[-1] / qw) * qw
        writes = (self.batch + 1) * math.prod(self.out_size[:-1]) * row * self.channels
        return max(reads, writes) > _MAX_INT32


def _block_problems(
    config: DepthwiseConfig | DepthwiseWgradConfig, unrolled: int, most: int
) -> list[str]:
    """Returns what is wrong with a program whose threads do all ``unrolled`` times, in elements."""
    found = [
        *power_problems(config, 1, 4096, "block_p"),
        *power_problems(config, 1, 1024, "block_c"),
        *power_problems(config, 1, 32, "num_warps"),
    ]
    if found:
        return found
    elements, at_most = config.thread_channels, min(_MOST_ELEMENTS, most // max(unrolled, 1))
    if elements > at_most:
        found.append(
            f"block_p * block_c is {config.block_p * config.block_c}, {elements} elements of each "
            f"thread of {config.num_warps} warps: expected at most {at_most}"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseConfig:
    """One way to compile the kernel.

    Attributes:
        qw: Neighbouring output pixels of a position.
        block_p: Positions of a program.
        block_c: Channels of a program.
        num_warps: Warps of a program.
    """

    qw: int
    block_p: int
    block_c: int
    num_warps: int = 4

    def problems(self) -> list[str]:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        return [
            *range_problems(self, 1, _MOST_PIXELS, "qw"),
            *_block_problems(self, self.qw, _MOST_OUTPUTS),
        ]

    @property
    def thread_channels(self) -> int:
        """Neighbouring channels of a thread, whose loads and stores are so many elements."""
        return self.block_p * self.block_c // (32 * self.num_warps)


def configs(walk: Walk) -> list[DepthwiseConfig]:
    """Returns the configurations that are worth a try."""
    found = []
    for qw in dict.fromkeys(-(-pixels // walk.up[-1]) * walk.up[-1] for pixels in (1, 2, 4, 7, 8)):
        for block_c in (16, 32, 64, 128):
            if block_c > 16 and block_c >= 2 * walk.channels:
                continue
            for thread_channels in (2, 4, 8):
                for num_warps in (4, 8):
                    block_p = thread_channels * 32 * num_warps // block_c
                    found.append(
                        DepthwiseConfig(
                            qw=qw, block_p=block_p, block_c=block_c, num_warps=num_warps
                        )
                    )
    return found


def expected_us(config: DepthwiseConfig, walk: Walk, num_sms: int) -> float:
    """Returns a time for comparisons: instructions, counted in compiled kernels, per scheduler.

    Args:
        config: The configuration.
        walk: Which way over which input.
        num_sms: Multiprocessors of the GPU.
    """
    qw, width, up = config.qw, config.thread_channels, walk.up[-1]
    taps, lines = walk.taps[-1], math.prod(walk.taps[:-1]) / walk.classes
    columns = ((qw - 1) * walk.step[-1] + (taps - 1) * walk.dilation[-1]) // up + 1
    products = qw * taps / up
    # Every element is converted; a load has a mask.  A row of the filter has its address and mask.
    line = products * width + columns * (width + 3.5) + taps * (width + 1) + 16
    # Divisions that find the position; per pixel a conversion, a mask and a store.
    thread = 110 + lines * line + qw * (width + 6)
    programs = math.prod(walk.grid(config))
    registers = 40 + width * (qw + min(taps, qw) + 2)
    if registers > 255:
        return math.inf
    # Warps that a multiprocessor holds, and as many as hide the latency of loads.
    resident = min(64, 65536 // (32 * registers) // config.num_warps * config.num_warps)
    warps = min(resident, programs * config.num_warps / num_sms)
    waiting = 1 + 16 / max(warps, 1)
    waves = programs * config.num_warps / num_sms / 4
    # Pieces of fewer than 128 bytes cost.
    computing = max(waves, 1.0) * thread * waiting * (1 + 8 / config.block_c) / H200.cycles_per_us
    # Rows are loaded again by the program of the rows below, from L2.
    rows = max(1.0, config.block_p * qw / walk.out_size[-1])
    again = 1.0
    if walk.dims > 1:
        more = (walk.taps[-2] - 1) * walk.dilation[-2] + 1 - walk.step[-2]
        again += max(0, more) / (rows * walk.step[-2])
    pixels_in, pixels_out = math.prod(walk.in_size), math.prod(walk.out_size)
    moved = 2 * walk.batch * walk.channels * (again * pixels_in + pixels_out)
    reading = moved / (H200.copy_bytes_per_us * _COPY_RATE)
    # What large programs hold back when they end, and start with.
    ends = 1 + config.num_warps / 100
    return (max(computing, reading) + 0.2 * min(computing, reading)) * ends


def ranking(walk: Walk, num_sms: int) -> list[DepthwiseConfig]:
    """Returns the configurations in the order of the times that the model expects.

    Args:
        walk: Which way over which input.
        num_sms: Multiprocessors of the GPU.
    """
    return sorted(configs(walk), key=lambda config: expected_us(config, walk, num_sms))


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseWgradConfig:
    """One way to compile the kernel of the filter's gradient.

    Attributes:
        qw: Neighbouring pixels of dy of a position.
        lines: Rows of the filter of a program.
        taps: Taps of each.
        block_p: Positions of a program at a time.
        block_c: Channels of a program.
        num_warps: Warps of a program.
        max_registers: Of a thread: the assembler would load further ahead than that pays.
    """

    qw: int
    lines: int
    taps: int
    block_p: int
    block_c: int
    num_warps: int = 4
    max_registers: int = 168

    def problems(self) -> list[str]:
        """Returns why the kernel cannot be compiled so; nothing where it can."""
        return [
            *range_problems(self, 1, _MOST_PIXELS, "qw"),
            *range_problems(self, 1, _MOST_SUMS, "lines", "taps", "sums"),
            *range_problems(self, 24, 255, "max_registers"),
            *_block_problems(self, self.qw * self.sums, _MOST_PRODUCTS),
        ]

    @property
    def sums(self) -> int:
        """Taps of a program, all unrolled."""
        return self.lines * self.taps

    @property
    def thread_channels(self) -> int:
        """Neighbouring channels of a thread."""
        return self.block_p * self.block_c // (32 * self.num_warps)

    @property
    def registers(self) -> int:
        """What a thread takes: all it gets."""
        return self.max_registers

    @property
    def resident(self) -> int:
        """Programs that a multiprocessor holds at a time."""
        return max(1, 65536 // (32 * self.num_warps * self.registers))

    def positions(self, walk: Walk) -> int:
        """Returns the positions of dy."""
        rows = walk.batch * math.prod(walk.out_size[:-1])
        return rows * math.ceil(walk.out_size[-1] / self.qw)

    def chunks(self, walk: Walk) -> int:
        """Returns the parts of the filter."""
        lines = math.ceil(math.prod(walk.taps[:-1]) / self.lines)
        return lines * math.ceil(walk.taps[-1] / self.taps)

    def parts(self, walk: Walk, num_sms: int) -> tuple[int, int]:
        """Returns parts of the positions, and tiles of BLOCK_P positions in each.

        As many programs as run at a time: each has about the same work.
        """
        tiles = max(1, math.ceil(self.positions(walk) / self.block_p))
        others = math.ceil(walk.channels / self.block_c) * self.chunks(walk)
        wanted = max(1, num_sms * self.resident // others)
        of_part = math.ceil(tiles / wanted)
        return math.ceil(tiles / of_part), of_part


def wgrad_configs(walk: Walk) -> list[DepthwiseWgradConfig]:
    """Returns the configurations of the filter's gradient that are worth a try."""
    all_lines, all_taps = math.prod(walk.taps[:-1]), walk.taps[-1]
    found = []
    for qw in (1, 2, 4, 5, 6, 7, 8):
        if qw > walk.out_size[-1]:
            continue
        for thread_channels in (1, 2, 4, 8):
            # Sums are at most 100 registers, and as much of the filter as goes in.
            most = 100 // thread_channels
            taps = math.ceil(all_taps / math.ceil(all_taps / most))
            lines = max(1, min(all_lines, most // taps))
            lines = math.ceil(all_lines / math.ceil(all_lines / lines))
            # Sums and dy live all the time; more of them are spilled, and that costs.
            if thread_channels * (lines * taps + qw) > _LIVE_REGISTERS:
                continue
            found += [
                DepthwiseWgradConfig(
                    qw=qw,
                    lines=lines,
                    taps=taps,
                    block_p=thread_channels * 128 // block_c,
                    block_c=block_c,
                )
                for block_c in (16, 32, 64, 128)
                if block_c <= thread_channels * 128
                and (block_c == 16 or block_c < 2 * walk.channels)
            ]
    return found


def expected_wgrad_us(config: DepthwiseWgradConfig, walk: Walk, num_sms: int) -> float:
    """Returns a time for comparisons, as :func:`expected_us`."""
    qw, width = config.qw, config.thread_channels
    columns = (qw - 1) * walk.step[-1] + (config.taps - 1) * walk.dilation[-1] + 1
    products = qw * config.taps * width * (2 if walk.out_size[-1] % qw else 1)
    tile = 70 + qw * (width + 3.5) + config.lines * (products + columns * (width + 3.5) + 14)
    parts, tiles = config.parts(walk, num_sms)
    # Sums of BLOCK_P threads go through shared memory, those of parts through memory.
    end = config.lines * config.taps * (40 + 6 * width)
    programs = parts * math.ceil(walk.channels / config.block_c) * config.chunks(walk)
    waves = math.ceil(programs / (num_sms * config.resident))
    warps = min(config.resident, math.ceil(programs / num_sms)) * config.num_warps
    instructions = waves * warps / 4 * (tiles * tile + end) * (1 + 6 / warps)
    # The more lives in registers, the less is loaded ahead.
    live = width * (config.lines * config.taps + qw)
    tight = 1 + max(0, live - 60) / 400
    computing = instructions * (1 + 8 / config.block_c) * tight / H200.cycles_per_us
    # Each part of the filter reads x and dy again, from L2 where the parts keep together.
    pixels_in, pixels_out = math.prod(walk.in_size), math.prod(walk.out_size)
    read = 2 * walk.batch * walk.channels * (pixels_in + pixels_out) * config.chunks(walk)
    workspace = 2 * 4 * parts * math.prod(walk.taps) * walk.channels
    reading = read / (H200.copy_bytes_per_us * _REREAD_RATE)
    return (
        max(computing, reading)
        + 0.3 * min(computing, reading)
        + H200.launch_us
        + workspace / (H200.copy_bytes_per_us * _PARTS_RATE)
    )


def rank_wgrad(walk: Walk, num_sms: int) -> list[DepthwiseWgradConfig]:
    """Returns the configurations of the filter's gradient in the order of expected times.

    Args:
        walk: Forward over x.
        num_sms: Multiprocessors of the GPU.
    """
    return sorted(wgrad_configs(walk), key=lambda config: expected_wgrad_us(config, walk, num_sms))
