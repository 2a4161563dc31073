"""The zoo's layers: the file that keeps them, the split, and seeded samples.

``layers.jsonl`` has a first line with the versions of the libraries and the networks, and a line
per convolution as one image of a network has it:

    [[images, Ci, Co, size, filter, stride, padding, dilation, groups, transposed],
     [[network, count], ...]]

Networks are numbers into the list of the first line, which also says their batch sizes and types.
A layer is a convolution at one batch size in one type.

The split is a hash of what a filter is: channels, taps, stride, dilation and groups.  So a layer of
the held-out part has no twin at another batch or image size in the tuning part, and no entry of a
table that was tuned on that part has its key.  A layer never moves from one part to the other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triton_ext.ops.core.problem import ConvProblem

from benchmarks.harness import write_text
from benchmarks.suites import Layer

__all__ = ["PARTS", "ZOO", "Geometry", "Record", "ZooLayer", "part_of", "read_zoo",
           "sample", "write_zoo", "zoo_layers"]  # fmt: skip

ZOO = pathlib.Path(__file__).with_name("layers.jsonl")
PARTS = ("tune", "held-out")

# Neither changes, ever: layers would move from one part to the other.
_SPLIT_SEED = "triton-ext zoo 1"
_TUNING_SHARE = 0.6

# A batch size at which a convolution needs more than this is none that one GPU runs.
_MOST_ELEMENTS = 2**30
_MOST_FLOPS = 4e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A convolution of one item of a network's batch."""

    images: int  # N for one item of the batch: frames, windows or regions of an image
    in_channels: int  # Ci of the convolution; of a transposed one, channels of its output
    out_channels: int  # Co; of a transposed convolution, channels of its input
    input_size: tuple[int, ...]  # pixels of x; of a transposed convolution, of its output
    filter_size: tuple[int, ...]  # taps
    stride: tuple[int, ...]  # step of the filter
    padding: tuple[int, ...]  # on both sides
    dilation: tuple[int, ...]  # distance of taps
    groups: int  # of channels
    transposed: bool  # whether the network computes the gradient of x from dy in its forward pass

    @classmethod
    def of_call(
        cls, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
        transposed: bool, output_padding: Any, groups: int,
    ) -> Geometry:  # fmt: skip
        """Returns the geometry of a call of ``aten::convolution``."""
        size, taps = tuple(x.shape[2:]), tuple(weight.shape[2:])
        dims = len(size)
        stride, padding, dilation, output_padding = (
            tuple(values) * (dims if len(values) == 1 else 1)
            for values in (stride, padding, dilation, output_padding)
        )
        others = weight.shape[1] * groups
        channels = (x.shape[1], weight.shape[0])
        if transposed:
            channels = (others, x.shape[1])
            size = tuple(
                (n - 1) * s - 2 * p + d * (k - 1) + o + 1
                for n, s, p, d, k, o in zip(
                    size, stride, padding, dilation, taps, output_padding, strict=True
                )
            )
        return cls(
            images=x.shape[0], in_channels=channels[0], out_channels=channels[1], input_size=size,
            filter_size=taps, stride=stride, padding=padding, dilation=dilation, groups=groups,
            transposed=transposed,
        )  # fmt: skip

    def values(self) -> list[Any]:
        """Returns the fields as JSON has them."""
        found = dataclasses.astuple(self)
        return [list(v) if isinstance(v, tuple) else int(v) for v in found]

    @classmethod
    def of_values(cls, values: Sequence[Any]) -> Geometry:
        """The inverse of :meth:`values`."""
        names = [each.name for each in dataclasses.fields(cls)]
        found = {
            n: tuple(v) if isinstance(v, list) else v for n, v in zip(names, values, strict=True)
        }
        return cls(**found | {"transposed": bool(found["transposed"])})

    def problem(self, batch: int) -> ConvProblem:
        """Returns the problem of so many items."""
        return ConvProblem(
            batch=batch * self.images,
            in_channels=self.in_channels,
            out_channels=self.out_channels,
            input_size=self.input_size,
            filter_size=self.filter_size,
            stride=self.stride,
            padding=tuple((each, each) for each in self.padding),
            dilation=self.dilation,
            groups=self.groups,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A network of the zoo and its convolutions."""

    name: str  # unique in the zoo
    library: str  # which package has it
    inference: tuple[int, ...]  # batch sizes of inference
    training: tuple[int, ...]  # batch sizes of training
    dtypes: tuple[str, ...]  # types that it runs in
    format: str  # memory format of its activations as it is usually run
    counts: Mapping[Geometry, int]  # how often one call computes each convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooLayer:
    """A convolution at one batch size, in one type."""

    problem: ConvProblem  # what it computes
    transposed: bool  # whether its forward pass is dgrad
    dtype: str  # of the operands, torch's name
    # How often it occurs in a call of each network, added over networks.
    inference: int = field(compare=False)
    training: int = field(compare=False)  # the same in training steps
    networks: tuple[str, ...] = field(compare=False)  # names of the networks

    @property
    def name(self) -> str:
        """That of :class:`benchmarks.suites.Layer`, with a mark where it is transposed."""
        return Layer("zoo", self.problem).name + ("_t" if self.transposed else "")

    @property
    def part(self) -> str:
        """One of :data:`PARTS`."""
        return part_of(self.problem, self.transposed)

    def occurrences(self, direction: str) -> int:
        """Returns how often networks compute a direction of it.

        Args:
            direction: ``"fprop"``, ``"dgrad"`` or ``"wgrad"``.
        """
        forward = "dgrad" if self.transposed else "fprop"
        return self.training + (self.inference if direction == forward else 0)


def part_of(problem: ConvProblem, transposed: bool) -> str:
    """Returns the part of the split that a layer belongs to; one of :data:`PARTS`."""
    p = problem
    words = (
        _SPLIT_SEED, p.in_channels, p.out_channels, p.filter_size, p.stride, p.dilation, p.groups,
        bool(transposed),
    )  # fmt: skip
    return PARTS[0] if _uniform(words) < _TUNING_SHARE else PARTS[1]


def _uniform(value: object) -> float:
    """Returns a number in (0, 1) that depends on the text of a value only."""
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64


def write_zoo(path: pathlib.Path, versions: Mapping[str, str], records: Sequence[Record]) -> None:
    """Writes the file of the zoo.

    Args:
        path: The file.
        versions: Of the libraries.
        records: The networks.
    """
    names = [[r.name, r.library, r.inference, r.training, r.dtypes, r.format] for r in records]
    used: dict[Geometry, list[tuple[int, int]]] = {}
    for index, record in enumerate(records):
        for geometry, count in record.counts.items():
            used.setdefault(geometry, []).append((index, count))
    compact = {"separators": (",", ":")}
    lines = [json.dumps({"versions": versions, "networks": names}, separators=(",", ":"))]
    values = sorted((geometry.values(), uses) for geometry, uses in used.items())
    lines += [json.dumps(each, **compact) for each in values]  # type: ignore[arg-type]
    write_text(path, "\n".join(lines) + "\n")


def read_zoo(path: pathlib.Path = ZOO) -> list[Record]:
    """Returns the networks of a file that :func:`write_zoo` wrote."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    networks = json.loads(first)["networks"]
    counts: list[dict[Geometry, int]] = [{} for _ in networks]
    for line in lines:
        values, uses = json.loads(line)
        geometry = Geometry.of_values(values)
        for index, count in uses:
            counts[index][geometry] = count
    return [
        Record(
            name=name, library=library, inference=tuple(inference), training=tuple(training),
            dtypes=tuple(dtypes), format=memory_format, counts=found,
        )
        for (name, library, inference, training, dtypes, memory_format), found in zip(
            networks, counts, strict=True
        )
    ]  # fmt: skip


def zoo_layers(part: str | None = None, path: pathlib.Path = ZOO) -> list[ZooLayer]:
    """Returns the layers of one part of the zoo, each once, in the order of the file.

    Args:
        part: One of :data:`PARTS`; all layers by default.
        path: The file.

    Raises:
        ValueError: There is no such part.
    """
    if part is not None and part not in PARTS:
        raise ValueError(f"part {part!r}: expected {' or '.join(PARTS)}")
    counts: dict[tuple[ConvProblem, bool, str], Counter[str]] = {}
    for record in read_zoo(path):
        for problem, transposed, dtype, kind, count in _uses(record):
            counter = counts.setdefault((problem, transposed, dtype), Counter())
            counter[kind] += count
            counter[f"in {record.name}"] += 1
    return [
        ZooLayer(
            problem=problem, transposed=transposed, dtype=dtype, inference=counter["inference"],
            training=counter["training"],
            networks=tuple(key[3:] for key in counter if key.startswith("in ")),
        )
        for (problem, transposed, dtype), counter in counts.items()
        if part is None or part_of(problem, transposed) == part
    ]  # fmt: skip


def _uses(record: Record) -> Iterator[tuple[ConvProblem, bool, str, str, int]]:
    batches = [("inference", each) for each in record.inference]
    batches += [("training", each) for each in record.training]
    for geometry, count in record.counts.items():
        for kind, batch in batches:
            problem = geometry.problem(batch)
            if _fits(problem):
                for dtype in record.dtypes:
                    yield problem, geometry.transposed, dtype, kind, count


def _fits(problem: ConvProblem) -> bool:
    largest = max(math.prod(problem.x_shape), math.prod(problem.y_shape))
    return largest <= _MOST_ELEMENTS and problem.flops <= _MOST_FLOPS


def sample(layers: Sequence[ZooLayer], direction: str, count: int, seed: int = 0) -> list[ZooLayer]:
    """Returns a seeded sample without replacement; the first of a longer one are a shorter one.

    The chance of a layer grows with the square root of its occurrences, so that common layers come
    first and rare ones are still seen.

    Args:
        layers: To choose from.
        direction: Whose occurrences count; layers without any are left out.
        count: How many at most.
        seed: Of the sample.
    """

    def key(layer: ZooLayer) -> float:
        # Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006.
        weight = math.sqrt(layer.occurrences(direction))
        return -math.log(_uniform((seed, layer.name, layer.dtype))) / weight

    taken = [layer for layer in layers if layer.occurrences(direction) > 0]
    return sorted(taken, key=key)[:count]
