"""The words of a memory map, which text and pictures share."""

from __future__ import annotations

from collections.abc import Sequence

from triton_ext.analysis.memory_map import AccessMap, Bar, FunctionMap, Row, SharedMemory

__all__ = [
    "TIMES",
    "access_title",
    "caveat",
    "cost",
    "head",
    "kib",
    "names_of",
    "numbers",
    "place_of",
    "ratio",
    "shown_end",
    "summary",
    "tooltip",
    "warnings",
]

_MOST_LINES = 4
#: Gaps of less than this part are not worth a word.
_LITTLE = 50
TIMES = "\N{MULTIPLICATION SIGN}"


def kib(count: int) -> str:
    """Bytes for people: exact where that is short."""
    if count < 1024:
        return f"{count} B"
    if count <= 10240 and count % 1024:
        return f"{count} B"
    # More than any GPU has is about right.
    unit, size = "KiB", count / 1024
    for larger in ("MiB", "GiB", "TiB", "PiB"):
        if size < 10240:
            break
        unit, size = larger, size / 1024
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def numbers(lines: Sequence[int]) -> str:
    """``line 3``, ``lines 3, 4``."""
    shown = ", ".join(str(line) for line in lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        shown += ", …"
    return f"line{'s' if len(lines) > 1 else ''} {shown}"


def names_of(access: AccessMap) -> str:
    """The buffers of an access."""
    shown = ", ".join(access.names[:2])
    return f"{shown}, …" if len(access.names) > 2 else shown


def access_title(access: AccessMap) -> str:
    """Names an access: a read or a write, and its operations."""
    return f"{'write' if access.is_store else 'read'} {names_of(access)}"


def ratio(access: AccessMap) -> float:
    """How many times as many wavefronts there are as without conflicts."""
    return access.cost.wavefronts / access.cost.ideal if access.cost is not None else 0.0


def cost(access: AccessMap) -> str:
    """Returns the cost of an access as a sentence."""
    if access.cost is None:
        return f"not known: {access.reason}"
    plural = "s" if access.cost.instructions != 1 else ""
    what = (
        f"transposing matrix instruction{plural}"
        if access.is_transposed
        else f"instruction{plural}"
    )
    size = "" if access.is_transposed else f" of {access.bits} bits a lane"
    said = f"{access.cost.instructions} {what}{size}: {access.cost.wavefronts} wavefronts"
    if not access.cost.lost:
        return f"{said}, no conflicts"
    return f"{said}, {access.cost.ideal} without conflicts"


def caveat(access: AccessMap) -> tuple[str, ...]:
    """Returns notes on the cost of an access."""
    found = []
    if access.partition_slots is not None:
        slots, ideal = access.partition_slots
        said = "pairs of waves never want the same partition"
        if slots > ideal:
            said = f"pairs of waves want the same partition in {slots - ideal} of {ideal} turns"
        found.append(said)
    if access.may_be_transposed:
        found.append("Triton may emit a transposing load here: this is what plain loads cost")
    if access.may_be_misaligned:
        found.append("padded by less than 16 bytes: Triton may emit misaligned instructions")
    return tuple(found)


def head(row: Row) -> str:
    """Returns the heading of a row, with how often it occurs."""
    return f"{row.head} {TIMES}{row.times}" if row.times > 1 else row.head


def place_of(bar: Bar) -> str:
    """Where a buffer lies."""
    where = f"{bar.offset} to {bar.end}"
    if not bar.partitions:
        return where
    plural = "s" if len(bar.partitions) > 1 else ""
    return f"{where}, partition{plural} {', '.join(map(str, bar.partitions))}"


def tooltip(bar: Bar) -> str:
    """All of a buffer."""
    return f"{bar.name}: {kib(bar.size)}, bytes {place_of(bar)}; line {bar.line}"


def summary(found: FunctionMap, memory: SharedMemory) -> str:
    """How much is needed, and how much there is."""
    least = "at least " if found.unknown else ""
    said = f"needs {least}{kib(found.total)} of {kib(memory.bytes)}"
    said += f" · at most {kib(found.peak)} alive at once"
    lost = found.total - found.lower_bound
    if lost * _LITTLE < found.total:
        lost = 0
    if lost and not found.is_optimal:
        said += f" · {kib(lost)} above the least that any placement may need"
    elif lost:
        said += f" · {kib(lost)} of gaps that no order of the buffers avoids"
    if found.total > memory.bytes:
        said += f" · {kib(found.total - memory.bytes)} too much"
    return said


def warnings(found: FunctionMap) -> tuple[str, ...]:
    """Returns a warning for each part that a map does not show."""
    return tuple(
        f"@{found.name}: the memory that '{op.name}', line {op.line}, needs while it runs is not "
        "shown: its size is not known"
        for op in found.unknown
    )


def shown_end(found: FunctionMap, memory: SharedMemory) -> int:
    """Behind the last byte that is shown: all of the memory, and what goes beyond it."""
    return max(found.total, memory.bytes)
