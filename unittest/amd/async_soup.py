"""Statements in any order: copies, commits, waits, loops and branches that make no sense together.

Nothing in such a kernel is read for a reason; what is tested is that each wait waits for what it
asks for.
"""

from __future__ import annotations

from async_pieces import Context, Tile
from async_text import TOKEN, has_stores, has_tdm

__all__ = ["soup"]


class _Soup:
    def __init__(self, context: Context) -> None:
        self.c = context
        self.f = context.f
        self.rng = context.rng
        self.tiles = [context.tile(self.rng.randint(1, 3)) for _ in range(2)]
        self.tdm_tiles = []
        if has_tdm(context.arch):
            self.tdm_tiles = [context.tile(self.rng.randint(1, 3), tdm=True) for _ in range(2)]
        self.left = self.rng.randint(6, 30)

    def index(self, tile: Tile, inductions: list[str]) -> str:
        """An index of a tile: a constant, or a remainder."""
        if inductions and self.rng.random() < 0.5:
            return self.c.modulo(self.rng.choice(inductions), tile.depth)
        return self.f.const(self.rng.randrange(tile.depth))

    def statements(
        self, depth: int, tokens: list[str], tdm: list[str], inductions: list[str]
    ) -> None:
        """Writes statements; the lists are what is visible, and grow."""
        for _ in range(self.rng.randint(1, 6 if depth else 12)):
            if self.left <= 0:
                return
            self.left -= 1
            drawn = self.rng.random()
            if drawn < 0.2 and depth < 3:
                self.region(depth, tokens, tdm, inductions)
            elif self.tdm_tiles and drawn < 0.45:
                self.transfer(tdm, inductions)
            else:
                self.copy(tokens, inductions)

    def copy(self, tokens: list[str], inductions: list[str]) -> None:
        """A copy, commit or wait of the first counter, or a read."""
        tile = self.rng.choice(self.tiles)
        drawn = self.rng.random()
        if drawn < 0.35:
            index = self.index(tile, inductions)
            stores = has_stores(self.c.host, self.c.arch) and self.rng.random() < 0.35
            token = self.c.store(tile, index) if stores else self.c.fill(tile, index)
            if self.rng.random() < 0.2:
                tokens.append(token)
        elif drawn < 0.65:
            tokens.append(self.f.commit())
        elif drawn < 0.9:
            asked = self.some(tokens) if self.rng.random() < 0.5 else []
            self.f.wait(*asked, num=self.rng.randint(0, 4))
        else:
            self.c.load(tile, self.index(tile, inductions))

    def transfer(self, tdm: list[str], inductions: list[str]) -> None:
        """A TDM operation, or a wait for some."""
        tile = self.rng.choice(self.tdm_tiles)
        drawn = self.rng.random()
        if drawn < 0.6:
            index = self.index(tile, inductions)
            stores = self.rng.random() < 0.35
            token = self.c.tdm_store(tile, index) if stores else self.c.tdm_fill(tile, index)
            if token is not None:
                tdm.append(token)
        else:
            asked = self.some(tdm) if self.rng.random() < 0.5 else []
            self.f.tdm_wait(*asked, num=self.rng.randint(0, 5))

    def some(self, tokens: list[str]) -> list[str]:
        """Some of the tokens, the newer ones more often."""
        near = tokens[-4:] if self.rng.random() < 0.8 else tokens
        return self.rng.sample(near, min(len(near), self.rng.randint(1, 2)))

    # ---- regions

    def region(self, depth: int, tokens: list[str], tdm: list[str], inductions: list[str]) -> None:
        """A loop, a branch or a call."""
        kind = self.rng.choice(("for", "for", "carried", "if", "else", "result", "while", "call"))
        i, f = f"%s{len(self.f.lines)}", self.f
        loop = f"scf.for {i} = {f.const(0)} to {self.c.trips()} step {f.const(1)}"
        if kind == "for":
            with f.block(f"{loop} : i32 {{"):
                self.statements(depth + 1, [*tokens], [*tdm], [*inductions, i])
        elif kind == "carried" and tokens:
            self.carried(loop, depth, tokens, tdm, [*inductions, i])
        elif kind == "while":
            with f.block(f"scf.while ({i} = {f.const(0)}) : (i32) -> () {{"):
                self.statements(depth + 1, [*tokens], [*tdm], inductions)
                f.emit(f"scf.condition({f.value(f'arith.cmpi slt, {i}, %n : i32')})")
                f.emit("} do {")
                self.statements(depth + 1, [*tokens], [*tdm], inductions)
                f.emit(f"scf.yield {f.const(self.rng.choice((2, 9)))} : i32")
        elif kind == "result":
            self.result(depth, tokens, tdm, inductions)
        elif kind == "call":
            self.call()
        else:
            f.emit("scf.if %b {")
            f.depth += 1
            self.statements(depth + 1, [*tokens], [*tdm], inductions)
            if kind == "else":
                f.depth -= 1
                f.emit("} else {")
                f.depth += 1
                self.statements(depth + 1, [*tokens], [*tdm], inductions)
            f.depth -= 1
            f.emit("}")

    def carried(
        self, loop: str, depth: int, tokens: list[str], tdm: list[str], inductions: list[str]
    ) -> None:
        """A loop that hands on two tokens: the younger one, and a new one."""
        f = self.f
        base = len(f.lines)
        inits = [tokens[-1], self.rng.choice(tokens)]
        args = f"%x{base} = {inits[0]}, %y{base} = {inits[1]}"
        head = f"%r{base}:2 = {loop} iter_args({args}) -> ({TOKEN}, {TOKEN}) : i32 {{"
        with f.block(head):
            self.statements(depth + 1, [*tokens, f"%x{base}", f"%y{base}"], [*tdm], inductions)
            f.emit(f"scf.yield %y{base}, {f.commit()} : {TOKEN}, {TOKEN}")
        tokens += [f"%r{base}#0", f"%r{base}#1"]

    def result(self, depth: int, tokens: list[str], tdm: list[str], inductions: list[str]) -> None:
        """A branch whose result is a token."""
        f = self.f
        name = f"%t{len(f.lines)}"
        f.emit(f"{name} = scf.if %b -> ({TOKEN}) {{")
        for side in range(2):
            f.depth += 1
            inner = [*tokens]
            self.statements(depth + 1, inner, [*tdm], inductions)
            chosen = inner[-1] if inner else f.commit()
            f.emit(f"scf.yield {chosen} : {TOKEN}")
            f.depth -= 1
            f.emit("}" if side else "} else {")
        tokens.append(name)

    def call(self) -> None:
        """A call of a function that copies and commits."""
        tile = self.rng.choice(self.tiles)
        type_ = self.f.buffer_type(tile.rows, 0, tile.layout)
        name = f"helper{len(self.f.kernel.functions)}"
        arguments = {"ptr": "!tt.ptr<f16>", "n": "i32", "tile": type_}
        helper = self.f.kernel.function(name, arguments, private=True)
        loop = f"scf.for %i = {helper.const(0)} to %n step {helper.const(1)} : i32 {{"
        if self.rng.random() < 0.3:
            with helper.block(loop):
                helper.commit(helper.copy("%tile", tile.rows, tile.layout))
        else:
            for _ in range(self.rng.randint(0, 2)):
                helper.copy("%tile", tile.rows, tile.layout)
                if self.rng.random() < 0.8:
                    helper.commit()
        if self.rng.random() < 0.2:
            helper.wait(num=self.rng.randint(0, 2))
        view = self.c.slot(tile, self.f.const(0))
        self.f.emit(f"tt.call @{name}(%ptr, %n, {view}) : (!tt.ptr<f16>, i32, {type_}) -> ()")


def soup(context: Context) -> None:
    """Writes the body of a kernel."""
    _Soup(context).statements(0, [], [], [])
