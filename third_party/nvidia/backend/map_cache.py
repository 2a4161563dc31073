"""Encoded tensor maps, kept for the whole process by what the driver sees of them.

Encoding a map takes the driver longer than looking one up, and launches need the same maps over and
over: tensors come back at the addresses that an allocator hands out again.  A map says nothing of a
tensor's content or device, only address, geometry and layout, so it stays right for whatever tensor
of that geometry lies at that address.

Two levels.  A *family* is all maps that differ in their address only; the first one is encoded, the
others are copies of it with the address replaced.  Below it, what was made for one address of a
family.  Each level is there twice, because a launch wants more than a map: the kernel arguments,
which are the map in the launcher's object with the sizes behind it.  Everything is bounded.

Kernel arguments are kept from the second time on that an address is seen: they are quickly made,
and what is used once would drive out what is used again.

A map is read when a kernel is launched and copied into the launch, a captured CUDA graph included:
what is dropped here later does not matter to a launch that was made.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from . import driver

__all__ = [
    "MAPS",
    "BoundedCache",
    "Family",
    "KernelArguments",
    "Numbers",
    "Sightings",
    "TensorMapCache",
]

#: The map as Triton's launcher takes it, shape and strides.
KernelArguments: TypeAlias = tuple[Any, ...]
#: All tensors that differ in their address only: what makes the kernel arguments of each from the
#: address (``driver.arguments_factory``).
Family: TypeAlias = Callable[[int], KernelArguments]

Value = TypeVar("Value")

# A map with its key takes about half a kilobyte of host memory.
_MAX_MAPS: Final = 8192
_MAX_FAMILIES: Final = 2048


class BoundedCache(Generic[Value]):
    """A dictionary that forgets what was not used for long; may be used by any thread.

    Entries live in two generations.  When the recent one holds half of the limit it becomes the
    older one, and what the older one still held is dropped; an entry found in the older one moves
    to the recent one.  So an entry is never dropped while fewer than ``limit / 2`` others were used
    since its last use, at most ``limit`` are held, and a hit costs one look-up: nothing is
    reordered, and only the change of generations takes a lock.

    Args:
        limit: Most entries held; at least 2.
    """

    __slots__ = ("_half", "_lock", "_older", "_recent")

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._lock = threading.Lock()
        self._recent: dict[Hashable, Value] = {}
        self._older: dict[Hashable, Value] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._recent.keys() | self._older.keys())

    def get(self, key: Hashable) -> Value | None:
        """Returns the value of ``key``, or ``None``."""
        found = self._recent.get(key)
        if found is not None:
            return found
        found = self._older.get(key)
        return None if found is None else self.put(key, found)

    def put(self, key: Hashable, value: Value) -> Value:
        """Keeps ``value`` unless another thread was faster; returns what is kept."""
        recent = self._recent
        if len(recent) >= self._half:
            recent = self._next_generation()
        # Atomic.  Where the generation changed meanwhile it goes into the older one: still kept.
        return recent.setdefault(key, value)

    def _next_generation(self) -> dict[Hashable, Value]:
        with self._lock:
            if len(self._recent) >= self._half:
                self._older = self._recent
                self._recent = {}
            return self._recent

    def replace(self, key: Hashable, value: Value) -> Value:
        """Keeps ``value`` in any case; returns it."""
        with self._lock:
            self._recent[key] = value
        return value

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._recent = {}
            self._older = {}


class Numbers:
    """Numbers for records that are slow to hash: equal records have one number while it is known.

    A record that was forgotten gets a new number, which costs a map made twice and nothing else.
    """

    __slots__ = ("_count", "_known")

    def __init__(self, limit: int = _MAX_FAMILIES) -> None:
        self._known: BoundedCache[int] = BoundedCache(limit)
        self._count = itertools.count(1)

    def of(self, record: Hashable) -> int:
        """Returns the number of ``record``."""
        known = self._known.get(record)
        return known if known is not None else self._known.put(record, next(self._count))


class Sightings:
    """A set of addresses that were seen; may be used by any thread.

    A full set is emptied and filled anew, so an address may count as never seen although it was.
    That costs time only: what belongs to it is made once more before it is kept.

    Args:
        limit: How many addresses are a full set; each thread may add one more.
    """

    __slots__ = ("_limit", "_seen")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[int] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def is_known(self, address: int) -> bool:
        """Tells whether ``address`` was seen before, and remembers that it was seen now."""
        # Each step is atomic, with the GIL and without.
        if address in self._seen:
            return True
        if len(self._seen) >= self._limit:
            self._seen.clear()
        self._seen.add(address)
        return False

    def clear(self) -> None:
        """Forgets everything."""
        self._seen.clear()


class TensorMapCache:
    """Encoded maps and kernel arguments, made from those of their family; for any thread.

    Args:
        max_maps: Most maps held, and most kernel arguments.
        max_families: Most families held, of either.

    Attributes:
        get: Returns the kernel arguments kept under a key, or ``None``; what every launch calls.
        put: Keeps kernel arguments under a key; returns what is kept.
        families: Makers of kernel arguments from a tensor's address, by family.
        numbers: Numbers of geometries and kernel layouts, for keys that are quick to hash.
        sightings: The addresses whose kernel arguments are worth keeping when they are seen again.
    """

    __slots__ = (
        "_arguments",
        "_encode_lock",
        "_encoded",
        "_templates",
        "families",
        "get",
        "numbers",
        "put",
        "sightings",
    )

    def __init__(self, max_maps: int = _MAX_MAPS, max_families: int = _MAX_FAMILIES) -> None:
        self._encoded: BoundedCache[bytes] = BoundedCache(max_maps)
        #: The first map of each family.
        self._templates: BoundedCache[bytes] = BoundedCache(max_families)
        self._encode_lock = threading.Lock()
        self._arguments: BoundedCache[KernelArguments] = BoundedCache(max_maps)
        self.families: BoundedCache[Family] = BoundedCache(max_families)
        self.numbers = Numbers()
        self.sightings = Sightings(max_maps // 2)
        self.get: Callable[[Hashable], KernelArguments | None] = self._arguments.get
        self.put: Callable[[Hashable, KernelArguments], KernelArguments] = self._arguments.put

    def __len__(self) -> int:
        return len(self._encoded) + len(self._arguments)

    def encoded(self, address: int, family: Hashable, encode: Callable[[], bytes]) -> bytes:
        """Returns the 128 bytes of a map.

        Args:
            address: Base address in bytes.
            family: All that the map depends on but the address.
            encode: Encodes the map from nothing; called for the first one of a family.

        Raises:
            DriverError: The driver is missing, too old, or refused the map.  Nothing is kept.
        """
        key = (address, family)
        found = self._encoded.get(key)
        if found is not None:
            return found
        template = self._templates.get(family)
        if template is None:
            with self._encode_lock:
                template = self._templates.get(family)
                if template is None:
                    return self._encoded.put(key, self._templates.put(family, encode()))
        return self._encoded.put(key, driver.replace_address(template, address))

    def clear(self) -> None:
        """Forgets every map; the next launches encode again."""
        for cache in (self._encoded, self._templates, self._arguments, self.families):
            cache.clear()
        self.sightings.clear()


# One for the process, because addresses are the process's.
MAPS: Final = TensorMapCache()
