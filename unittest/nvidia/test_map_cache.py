"""The bounded cache against a plain dictionary, alone and with many threads."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton_ext.backends.nvidia.backend import driver
from triton_ext.backends.nvidia.backend.map_cache import (
    BoundedCache,
    Numbers,
    Sightings,
    TensorMapCache,
)
from triton_ext.errors import DriverError


@given(st.integers(2, 12), st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=200))
def test_keeps_what_was_used_last_and_never_more_than_the_limit(limit, steps):
    cache: BoundedCache[int] = BoundedCache(limit)
    used: list[int] = []
    for is_put, key in steps:
        if is_put:
            assert cache.put(key, key * 7) == key * 7
        elif cache.get(key) is None:
            # Dropped, or never put: either way not among the last limit / 2 keys used.
            assert key not in used[-(limit // 2) :]
            continue
        else:
            assert cache.get(key) == key * 7
        if key in used:
            used.remove(key)
        used.append(key)
        assert len(cache) <= limit


def test_first_value_wins_and_replace_does_not_care():
    cache: BoundedCache[str] = BoundedCache(8)
    assert cache.put("a", "first") == "first"
    assert cache.put("a", "second") == "first"
    assert cache.replace("a", "third") == "third"
    assert cache.get("a") == "third"
    cache.clear()
    assert cache.get("a") is None
    assert len(cache) == 0


def test_replace_wins_over_the_older_generation():
    cache: BoundedCache[str] = BoundedCache(4)
    for key in "abc":  # a and b are in the older generation now
        cache.put(key, "old")
    cache.replace("a", "new")
    assert cache.get("a") == "new"


def test_numbers_tell_records_apart():
    numbers = Numbers()
    assert numbers.of(("x", 1)) == numbers.of(("x", 1))
    assert len({numbers.of(("x", i)) for i in range(100)}) == 100
    # A record that was forgotten never gets the number of another.
    few = Numbers(4)
    assert len({few.of(i) for i in range(1000)}) == 1000


@given(st.integers(1, 8), st.lists(st.integers(0, 12), max_size=100))
def test_an_address_is_known_once_it_was_seen_and_never_before(limit, addresses):
    sightings = Sightings(limit)
    held: list[int] = []
    for address in addresses:
        assert sightings.is_known(address) == (address in held)
        if address not in held:
            held = [*held, address] if len(held) < limit else [address]
    sightings.clear()
    assert not any(sightings.is_known(address) for address in addresses[:1])


def test_addresses_in_turn_become_known_up_to_the_limit():
    sightings = Sightings(64)
    for address in range(64):
        assert not sightings.is_known(address)
    assert all(sightings.is_known(address) for address in range(64))


def test_threads_share_sightings():
    sightings = Sightings(32)
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        barrier.wait()
        for step in range(5000):
            sightings.is_known((seed * 7919 + step) % 997)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Each of the others may have been between its test and its addition.
    assert len(sightings) <= 32 + 8


def test_threads_share_one_cache():
    cache: BoundedCache[int] = BoundedCache(64)
    barrier = threading.Barrier(16)
    wrong: list[tuple[int, int]] = []

    def work(seed: int) -> None:
        barrier.wait()
        for step in range(3000):
            key = (seed * 31 + step * 7) % 97
            value = cache.get(key)
            if value is None:
                value = cache.put(key, key + 1000)
            if value != key + 1000:
                wrong.append((key, value))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    # A thread may put into the generation that another has just retired.
    assert len(cache) <= 64 + 16


def test_a_failed_encoding_is_not_kept(monkeypatch):
    def replace(encoded: bytes, address: int) -> bytes:
        return encoded + address.to_bytes(8, "little")

    monkeypatch.setattr(driver, "replace_address", replace)
    maps = TensorMapCache()

    def fail() -> bytes:
        raise DriverError("refused")

    with pytest.raises(DriverError, match="refused"):
        maps.encoded(16, "family", fail)
    assert len(maps) == 0
    assert maps.encoded(16, "family", lambda: b"made") == b"made"
    assert maps.encoded(16, "family", fail) == b"made"
    assert maps.encoded(32, "family", fail) == b"made" + (32).to_bytes(8, "little")
    maps.clear()
    with pytest.raises(DriverError, match="refused"):
        maps.encoded(16, "family", fail)


def test_maps_and_kernel_arguments_under_one_key_are_two_things():
    maps = TensorMapCache()
    made = ("map", 5)
    assert maps.put((16, "family"), made) is made
    maps.families.put("family", lambda address: (address,))
    assert maps.encoded(16, "family", lambda: b"encoded") == b"encoded"
    assert maps.get((16, "family")) is made
    assert len(maps) == 2
    maps.clear()
    assert len(maps) == 0
    assert maps.families.get("family") is None
