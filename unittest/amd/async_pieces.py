"""Pipelines for generated kernels, right by construction.

Each piece has buffers of its own and, between waits, knows how many groups (or TDM operations) are
newer than the one that it needs: that number, or a smaller one, is what the wait gets.  Kernels
whose waits may ask for anything are made of the same pieces with random numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from async_text import TOKEN, Function, has_stores, has_tdm

__all__ = ["Context", "Tile", "piece"]


@dataclass(frozen=True, slots=True)
class Tile:
    """Several buffers of one kind.

    Attributes:
        name: The allocation.
        rows: Rows of each.
        depth: How many there are.
        layout: Its layout in LDS.
        bits: Of the row numbers, if it is filled by gather; 0 otherwise.
        indices: Layout of the row numbers.
    """

    name: str
    rows: int
    depth: int
    layout: str = "s"
    bits: int = 0
    indices: str = "i"


class Context:
    """What pieces are written with.

    Args:
        rng: Draws everything.
        function: Where the lines go.
        arbitrary: Whether the waits may have any number.
        drains: Whether a piece has to leave nothing in flight.
    """

    def __init__(
        self, rng: random.Random, function: Function, *, arbitrary: bool, drains: bool = True
    ) -> None:
        self.rng = rng
        self.f = function
        self.arbitrary = arbitrary
        self.drains = drains
        self.host, self.arch = function.kernel.host, function.kernel.arch

    def number(self, most: int) -> int:
        """What may stay in flight behind a wait."""
        if self.arbitrary:
            return self.rng.randint(0, 5)
        return most if self.rng.random() < 0.8 else self.rng.randint(0, most)

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self.rng.random() < probability

    # ---- integers

    def trips(self) -> str:
        """A trip count: a constant, or one that nobody knows."""
        return "%n" if self.chance(0.5) else self.f.const(self.rng.choice((0, 1, 2, 3, 4, 6)))

    def add(self, value: str, number: int) -> str:
        """A sum."""
        return self.f.value(f"arith.addi {value}, {self.f.const(number)} : i32")

    def modulo(self, value: str, number: int) -> str:
        """A remainder."""
        return self.f.value(f"arith.remsi {value}, {self.f.const(number)} : i32")

    def next_index(self, value: str, number: int) -> str:
        """The next number of a ring: ``value + 1``, or 0 where that is the end."""
        more = self.add(value, 1)
        inside = self.f.value(f"arith.cmpi slt, {more}, {self.f.const(number)} : i32")
        return self.f.value(f"arith.select {inside}, {more}, {self.f.const(0)} : i32")

    # ---- tiles

    def tile(self, depth: int, *, tdm: bool = False) -> Tile:
        """Allocates buffers that copies or TDM operations can fill."""
        layout, bits, indices = "s", 0, "i"
        if tdm and self.host != "3.6.0" and self.chance(0.4):
            rows, bits, indices = self.rng.choice(((64, 32, "i"), (64, 32, "w"), (256, 16, "i")))
        elif tdm:
            rows = self.rng.choice((16, 64))
        else:
            rows = self.f.kernel.rows * self.rng.choice((1, 1, 2, 4, 8))
            layout = "s4" if self.arch == "gfx1250" and self.chance(0.3) else "s"
        name = self.f.alloc(rows, depth, layout)
        return Tile(name, rows, depth, layout, bits, indices)

    def slot(self, tile: Tile, index: str) -> str:
        """One of the buffers."""
        return self.f.slot(tile.name, index, tile.rows, tile.depth, tile.layout)

    def load(self, tile: Tile, index: str) -> None:
        """Reads one of the buffers."""
        self.f.load(self.slot(tile, index), tile.rows, tile.layout)

    def overwrite(self, tile: Tile, index: str) -> None:
        """Writes one of the buffers from registers."""
        type_ = f"tensor<{tile.rows}x64xf16, #b>"
        zero = self.f.shared(
            "zero", tile.rows, text=f"arith.constant dense<0.000000e+00> : {type_}"
        )
        view = self.slot(tile, index)
        memory = self.f.buffer_type(tile.rows, 0, tile.layout)
        self.f.emit(f"ttg.local_store {zero}, {view} : {type_} -> {memory}")

    def fill(self, tile: Tile, index: str, condition: str | None = None) -> str:
        """Copies to one of the buffers."""
        view = self.slot(tile, index)
        mask = condition if condition is not None else "%b" if self.chance(0.25) else None
        has_buffer_copies = self.arch != "gfx1250" or self.host in ("3.6.0", "3.7.1")
        if has_buffer_copies and self.chance(0.3):
            return self.f.buffer_copy(view, tile.rows, tile.layout, mask)
        return self.f.copy(view, tile.rows, tile.layout, mask)

    def store(self, tile: Tile, index: str) -> str:
        """Copies one of the buffers to global memory."""
        mask = "%b" if self.chance(0.25) else None
        return self.f.store(self.slot(tile, index), tile.rows, tile.layout, mask)

    def tdm_fill(self, tile: Tile, index: str) -> str:
        """Fills one of the buffers by the tensor data mover."""
        view = self.slot(tile, index)
        if tile.bits:
            return self.f.rows_copy(view, tile.rows, tile.bits, gather=True, layout=tile.indices)
        return self.f.tdm_load(view, tile.rows)

    def tdm_store(self, tile: Tile, index: str) -> str | None:
        """Copies one of the buffers to global memory by the tensor data mover."""
        view = self.slot(tile, index)
        if tile.bits:
            return self.f.rows_copy(view, tile.rows, tile.bits, gather=False, layout=tile.indices)
        return self.f.tdm_store(view, tile.rows)

    def drain(self, *, tdm: bool = False) -> None:
        """Waits for everything."""
        if tdm:
            self.f.tdm_wait(num=self.number(0))
        else:
            self.f.wait(num=self.number(0))

    def end(self, *, tdm: bool = False) -> None:
        """What stands behind a piece."""
        if self.drains or self.chance(0.5):
            self.drain(tdm=tdm)

    def other_counter(self) -> None:
        """A copy on the other counter, waited for at once."""
        if has_tdm(self.arch) and self.chance(0.3):
            tile = Tile(self.f.alloc(16, 1), 16, 1)
            self.f.tdm_load(self.slot(tile, self.f.const(0)), 16)
            self.f.tdm_wait(num=self.number(0))


def piece(context: Context) -> None:
    """Writes one of the pieces that the host and target have."""
    pieces: list[Callable[[Context], None]] = [_ring, _ring, _line, _call, _branches]
    if has_stores(context.host, context.arch):
        pieces += [_stores, _through]
    if has_tdm(context.arch):
        pieces += [_tdm_ring, _tdm_ring, _tdm_line]
        if context.host != "3.6.0":
            pieces += [_tdm_stores]
    context.rng.choice(pieces)(context)


# ---- rings of buffers


def _ring(c: Context) -> None:
    """Copies run ahead of the loop that reads; a group for each iteration."""
    depth = c.rng.randint(2, 4)
    ahead = c.rng.randint(1, depth - 1)
    tiles = [c.tile(depth) for _ in range(c.rng.randint(1, 2))]
    conditional = c.rng.choice(("no", "no", "mask", "if", "if else"))

    def fetch(index: str, more: str | None) -> str:
        if conditional == "if else" and more is not None:
            return _fetch_in_both(c, tiles, index, more)
        if conditional == "if" and more is not None:
            with c.f.block(f"scf.if {more} {{"):
                for tile in tiles:
                    c.fill(tile, index)
            return c.f.commit()
        mask = more if conditional == "mask" else None
        tokens = [c.fill(tile, index, mask) for tile in tiles]
        return c.f.commit(*tokens) if c.chance(0.7) else c.f.commit()

    _run_ring(c, tiles, depth, ahead, lambda i, more: [fetch(i, more)], c.f.wait, 1)
    c.end()


def _fetch_in_both(c: Context, tiles: list[Tile], index: str, more: str) -> str:
    """Both branches commit, one of them nothing."""
    result = f"%t{len(c.f.lines)}"
    c.f.emit(f"{result} = scf.if {more} -> ({TOKEN}) {{")
    c.f.depth += 1
    token = c.f.commit(*[c.fill(tile, index) for tile in tiles])
    c.f.emit(f"scf.yield {token} : {TOKEN}")
    c.f.depth -= 1
    with c.f.block("} else {"):
        c.f.emit(f"scf.yield {c.f.commit()} : {TOKEN}")
    return result


def _tdm_ring(c: Context) -> None:
    """The same by the tensor data mover, whose waits count operations."""
    depth = c.rng.randint(2, 4)
    ahead = c.rng.randint(1, depth - 1)
    tiles = [c.tile(depth, tdm=True) for _ in range(c.rng.randint(1, 2))]

    def fetch(index: str, more: str | None) -> list[str]:
        return [c.tdm_fill(tile, index) for tile in tiles]

    _run_ring(c, tiles, depth, ahead, fetch, c.f.tdm_wait, len(tiles))
    c.end(tdm=True)


def _run_ring(
    c: Context,
    tiles: list[Tile],
    depth: int,
    ahead: int,
    fetch: Callable[[str, str | None], list[str]],
    wait: Callable[..., str],
    per_fetch: int,
) -> None:
    """Prologue and loop of a ring.

    Args:
        c: Where it is written.
        tiles: What is filled and read.
        depth: Buffers of the ring.
        ahead: Iterations that copies run ahead.
        fetch: Copies to the buffers of an index, if there is more; returns the tokens.
        wait: Waits for tokens and a number.
        per_fetch: What a fetch adds to that number.
    """
    f = c.f
    tokens = [token for i in range(ahead) for token in fetch(f.const(i), None)]
    with_tokens, rotating, early = c.chance(0.5), c.chance(0.5), c.chance(0.4)
    carried = [(f"%k{len(f.lines)}_{i}", token, TOKEN) for i, token in enumerate(tokens)]
    if not with_tokens:
        carried = []
    at, to = f"%at{len(f.lines)}", f"%to{len(f.lines)}"
    if rotating:
        carried += [(at, f.const(0), "i32"), (to, f.const(ahead % depth), "i32")]
    trips, i = c.trips(), f"%i{len(f.lines)}"
    head = f"scf.for {i} = {f.const(0)} to {trips} step {f.const(1)}"
    if carried:
        inits = ", ".join(f"{name} = {init}" for name, init, _ in carried)
        types = ", ".join(type_ for *_, type_ in carried)
        head = f"%r{len(f.lines)}:{len(carried)} = {head} iter_args({inits}) -> ({types}) "
    with f.block(f"{head} : i32 {{"):
        if not rotating:
            at, to = c.modulo(i, depth), c.modulo(c.add(i, ahead), depth)
        more = f.value(f"arith.cmpi slt, {c.add(i, ahead)}, {trips} : i32")
        new = fetch(to, more) if early else []
        newer = (ahead if early else ahead - 1) * per_fetch
        asked = [name for name, *_ in carried[:per_fetch]] if with_tokens else []
        wait(*asked, num=c.number(newer))
        for tile in tiles:
            c.load(tile, at)
        c.other_counter() if per_fetch == 1 else None
        new = new or fetch(to, more)
        if carried:
            names = [name for name, *_ in carried]
            yielded = [*names[per_fetch : len(tokens)], *new] if with_tokens else []
            if rotating:
                yielded += [c.next_index(at, depth), c.next_index(to, depth)]
            f.emit(f"scf.yield {', '.join(yielded)} : {types}")


def _stores(c: Context) -> None:
    """Stores from a ring, each buffer written again once its store is done."""
    depth = c.rng.randint(2, 4)
    tile = c.tile(depth)
    i = f"%i{len(c.f.lines)}"
    with c.f.block(f"scf.for {i} = {c.f.const(0)} to {c.trips()} step {c.f.const(1)} : i32 {{"):
        c.f.wait(num=c.number(depth - 1))
        index = c.modulo(i, depth)
        c.overwrite(tile, index)
        c.f.commit(c.store(tile, index))
    c.end()


def _tdm_stores(c: Context) -> None:
    """The same by the tensor data mover."""
    depth = c.rng.randint(2, 4)
    tile = c.tile(depth, tdm=True)
    i = f"%i{len(c.f.lines)}"
    with c.f.block(f"scf.for {i} = {c.f.const(0)} to {c.trips()} step {c.f.const(1)} : i32 {{"):
        c.f.tdm_wait(num=c.number(depth - 1))
        index = c.modulo(i, depth)
        c.overwrite(tile, index)
        c.tdm_store(tile, index)
    c.end(tdm=True)


def _through(c: Context) -> None:
    """Each buffer is loaded, stored from an iteration later, and loaded again.

    In front of the wait the groups are, newest first: load i, store i - 2, load i - 1, ...; what it
    lets in flight in iteration i - 1 is load i - 1 and store i - 3, so store i - 4 is done.  An
    empty group stands for the store that the first iteration has not behind it.
    """
    tile = c.tile(4)
    i = f"%i{len(c.f.lines)}"
    c.f.commit(c.fill(tile, c.f.const(0)))
    c.f.commit()
    with c.f.block(f"scf.for {i} = {c.f.const(1)} to {c.trips()} step {c.f.const(1)} : i32 {{"):
        c.f.commit(c.fill(tile, c.modulo(i, 4)))
        c.f.wait(num=c.number(2))
        c.f.commit(c.store(tile, c.modulo(c.add(i, 3), 4)))
    c.end()


# ---- without a loop


def _line(c: Context) -> None:
    """Several groups, waited for one after the other."""
    tiles = [c.tile(c.rng.randint(1, 3)) for _ in range(c.rng.randint(1, 4))]
    groups = []
    for tile in tiles:
        for index in range(tile.depth):
            token = c.fill(tile, c.f.const(index))
            groups.append((tile, c.f.const(index), c.f.commit(token)))
    for number, (tile, index, token) in enumerate(groups):
        asked = [token] if c.chance(0.4) else []
        c.f.wait(*asked, num=c.number(len(groups) - 1 - number))
        c.load(tile, index)
    c.end()


def _tdm_line(c: Context) -> None:
    """Several TDM operations, loads and stores, waited for one after the other."""
    uses = []
    for _ in range(c.rng.randint(1, 4)):
        tile = c.tile(c.rng.randint(1, 3), tdm=True)
        stores = c.host != "3.6.0" and c.chance(0.4)
        for number in range(tile.depth):
            index = c.f.const(number)
            if stores:
                c.overwrite(tile, index)
                uses.append((tile, index, c.tdm_store(tile, index), True))
            else:
                uses.append((tile, index, c.tdm_fill(tile, index), False))
    for number, (tile, index, token, stores) in enumerate(uses):
        asked = [token] if token is not None and c.chance(0.4) else []
        c.f.tdm_wait(*asked, num=c.number(len(uses) - 1 - number))
        (c.overwrite if stores else c.load)(tile, index)
    c.end(tdm=True)


def _branches(c: Context) -> None:
    """A token that is the result of a branch; either side fills what is read."""
    tile, other = c.tile(2), c.tile(1)
    result = f"%t{len(c.f.lines)}"
    if c.chance(0.5):
        c.f.commit(c.fill(other, c.f.const(0)))
    c.f.emit(f"{result} = scf.if %b -> ({TOKEN}) {{")
    for side in range(2):
        c.f.depth += 1
        token = c.f.commit(c.fill(tile, c.f.const(side)))
        c.f.emit(f"scf.yield {token} : {TOKEN}")
        c.f.depth -= 1
        c.f.emit("}" if side else "} else {")
    asked = [result] if c.chance(0.6) else []
    newer = 0
    if not asked and c.chance(0.5):
        extra = c.tile(1)
        c.f.commit(c.fill(extra, c.f.const(0)))
        newer = 1
    c.f.wait(*asked, num=c.number(newer))
    for index in range(2):
        c.load(tile, c.f.const(index))
    c.end()


def _call(c: Context) -> None:
    """A function that is not inlined commits some groups."""
    mine, theirs = c.tile(1), c.tile(1)
    type_ = c.f.buffer_type(theirs.rows, 0, theirs.layout)
    name = f"helper{len(c.f.kernel.functions)}_{len(c.f.lines)}"
    arguments = {"ptr": "!tt.ptr<f16>", "b": "i1", "tile": type_}
    helper = c.f.kernel.function(name, arguments, private=True)
    groups = c.rng.randint(0, 2)
    if groups and c.chance(0.4):
        with helper.block("scf.if %b {"):
            helper.copy("%tile", theirs.rows, theirs.layout)
    elif groups:
        helper.copy("%tile", theirs.rows, theirs.layout, "%b" if c.chance(0.3) else None)
    for _ in range(groups):
        helper.commit()
    token = c.f.commit(c.fill(mine, c.f.const(0)))
    view = c.slot(theirs, c.f.const(0))
    c.f.emit(f"tt.call @{name}(%ptr, %b, {view}) : (!tt.ptr<f16>, i1, {type_}) -> ()")
    asked = [token] if c.chance(0.3) else []
    c.f.wait(*asked, num=c.number(groups))
    c.load(mine, c.f.const(0))
    c.end()
