"""Encoded tensor maps, kept for the whole process by what the driver sees of them.

Encoding a map takes the driver longer than looking one up, and launches need the same maps over and
over: tensors come back at the addresses that an allocator hands out again.  A map says nothing of a
tensor's content or device, only address, geometry and layout, so it stays right for whatever tensor
of that geometry lies at that address.

Two levels.  A *family* is all maps that differ in their address only; the first one is encoded, the
others are copies of it with the address replaced.  The *maps* themselves are kept by address and
family, from the second time on that an address is seen: a copy is quickly made, and maps that are
used once would drive out those that are used again.  Both are bounded.

A map is read when a kernel is launched and copied into the launch, a captured CUDA graph included:
what is dropped here later does not matter to a launch that was made.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from . import driver

__all__ = ["MAPS", "BoundedCache", "Numbers", "Sightings", "TensorMapCache"]

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
    """The addresses seen of late; may be used by any thread.

    Nothing but speed depends on the answers, so all are forgotten at once where they are too many:
    an address is known where it was seen less than ``limit`` others ago, but for one such moment.

    Args:
        limit: Most addresses held, give or take one per thread.
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
    """Encoded maps by key, made from those of their family; may be used by any thread.

    Args:
        max_maps: Most maps held.
        max_families: Most families held.

    Attributes:
        get: Returns what is kept under a key, or ``None``; what every launch calls.
        put: Keeps a map under a key; returns what is kept.
        families: The first map of each family, by family.
        numbers: Numbers of geometries and kernel layouts, for keys that are quick to hash.
        sightings: The addresses whose maps are worth keeping when they are seen again.
    """

    __slots__ = ("_encode_lock", "_maps", "families", "get", "numbers", "put", "sightings")

    def __init__(self, max_maps: int = _MAX_MAPS, max_families: int = _MAX_FAMILIES) -> None:
        self._maps: BoundedCache[Any] = BoundedCache(max_maps)
        self.families: BoundedCache[Any] = BoundedCache(max_families)
        self.numbers = Numbers()
        self.sightings = Sightings(max_maps // 2)
        self._encode_lock = threading.Lock()
        self.get: Callable[[Hashable], Any] = self._maps.get
        self.put: Callable[[Hashable, Any], Any] = self._maps.put

    def __len__(self) -> int:
        return len(self._maps)

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
        found: bytes | None = self.get(key)
        if found is not None:
            return found
        template = self.families.get(family)
        if template is None:
            with self._encode_lock:
                template = self.families.get(family)
                if template is None:
                    return bytes(self.put(key, self.families.put(family, encode())))
        return bytes(self.put(key, driver.replace_address(template, address)))

    def clear(self) -> None:
        """Forgets every map; the next launches encode again."""
        self._maps.clear()
        self.families.clear()
        self.sightings.clear()


# One for the process, because addresses are the process's.
MAPS: Final = TensorMapCache()
