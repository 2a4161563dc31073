"""Text of kernels with asynchronous copies, as each Triton reads it.

A :class:`Kernel` collects functions, a :class:`Function` the lines of one.  Tiles are ``rows x 64``
halves, and :attr:`Kernel.rows` says how many rows are one instruction of a wave, so that a tile's
rows say how many instructions its copy is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["ARCHES", "HOSTS", "TOKEN", "Function", "Kernel", "has_stores", "has_tdm"]

HOSTS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
ARCHES = ("gfx942", "gfx950", "gfx1250")
TOKEN = "!ttg.async.token"


def has_tdm(arch: str) -> bool:
    """Whether a target has the tensor data mover."""
    return arch == "gfx1250"


def has_stores(host: str, arch: str) -> bool:
    """Whether LDS can be copied to global memory asynchronously."""
    return arch == "gfx1250" and host != "3.6.0"


class Kernel:
    """A module.

    Args:
        host: The version of Triton that shall read it.
        arch: The target.
    """

    def __init__(self, host: str, arch: str) -> None:
        self.host = host
        self.arch = arch
        self.lanes = 32 if arch == "gfx1250" else 64
        self.vector = 2 if arch == "gfx942" else 8
        #: Rows of 64 halves that the workgroup copies with one instruction of each wave.
        self.rows = 4 * self.lanes * self.vector // 64
        self.functions: list[Function] = []

    @property
    def old_tdm(self) -> bool:
        """Whether TDM operations have coordinates and a predicate of their own."""
        return self.host in ("3.6.0", "3.7.1")

    def function(self, name: str, arguments: dict[str, str], *, private: bool = False) -> Function:
        """Begins a function; the arguments are names and types."""
        function = Function(self, name, arguments, private)
        self.functions.append(function)
        return function

    def __str__(self) -> str:
        lanes, vector = 64 // self.vector, self.vector
        layouts = [
            f"#b = #ttg.blocked<{{sizePerThread = [1, {vector}], "
            f"threadsPerWarp = [{self.lanes // lanes}, {lanes}], warpsPerCTA = [4, 1], "
            "order = [1, 0]}>",
            # Every thread has every row; gather and scatter then need all of them in each wave.
            f"#i = #ttg.blocked<{{sizePerThread = [1, 16], threadsPerWarp = [{self.lanes}, 1], "
            "warpsPerCTA = [4, 1], order = [1, 0]}>",
            # The same with an eighth of the rows in each wave, where there are as many.
            f"#w = #ttg.blocked<{{sizePerThread = [1, 16], threadsPerWarp = [{self.lanes}, 1], "
            "warpsPerCTA = [1, 4], order = [1, 0]}>",
            "#s = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>",
            "#s4 = #ttg.swizzled_shared<{vec = 4, perPhase = 1, maxPhase = 8, order = [1, 0]}>",
            "#s1 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>",
            "#smem = #ttg.shared_memory",
        ]
        head = (
            'module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, '
            f'ttg.target = "hip:{self.arch}", "ttg.threads-per-warp" = {self.lanes} : i32}} {{'
        )
        bodies = [str(function) for function in self.functions]
        return "\n".join([*layouts, head, *bodies, "}"]) + "\n"


class Function:
    """One function, or one partition.

    Args:
        kernel: Where it belongs.
        name: Its symbol.
        arguments: Names and types; ``ptr`` is the global memory that copies read and write.
        private: Whether it is called and never inlined.
    """

    def __init__(self, kernel: Kernel, name: str, arguments: dict[str, str], private: bool) -> None:
        self.kernel = kernel
        self.name = name
        self.arguments = arguments
        self.private = private
        self.prelude: list[str] = []
        self.lines: list[str] = []
        self.depth = 2
        self._made: dict[tuple[object, ...], str] = {}

    def __str__(self) -> str:
        parts = []
        for name, type_ in self.arguments.items():
            divisible = " {tt.divisibility = 16 : i32}" if type_.startswith("!tt.ptr") else ""
            parts.append(f"%{name}: {type_}{divisible}")
        visibility, tail = (
            ("private", " attributes {noinline = true}") if self.private else ("public", "")
        )
        head = f"  tt.func {visibility} @{self.name}({', '.join(parts)}){tail} {{"
        return "\n".join([head, *self.prelude, *self.lines, "    tt.return", "  }"])

    # ---- lines

    def emit(self, text: str) -> None:
        """Adds a line."""
        self.lines.append("  " * self.depth + text)

    def value(self, text: str) -> str:
        """Adds a line that defines a value, and returns its name."""
        name = f"%v{len(self.lines)}"
        self.emit(f"{name} = {text}")
        return name

    @contextlib.contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """Writes a region between two lines."""
        self.emit(head)
        self.depth += 1
        yield
        self.depth -= 1
        self.emit(tail)

    def shared(self, *key: object, text: str) -> str:
        """A value that is defined once, at the start."""
        if key not in self._made:
            name = f"%p{len(self.prelude)}"
            self.prelude.append(f"    {name} = {text}")
            self._made[key] = name
        return self._made[key]

    # ---- values

    def const(self, number: int) -> str:
        """A constant of type i32."""
        return self.shared("const", number, text=f"arith.constant {number} : i32")

    def true(self) -> str:
        """A constant of type i1."""
        return self.shared("true", text="arith.constant true")

    def offsets(self, rows: int) -> str:
        """Offsets of a tile, as a tensor of i32."""
        one = "tensor<64xi32, #ttg.slice<{dim = 0, parent = #b}>>"
        row = f"tensor<{rows}xi32, #ttg.slice<{{dim = 1, parent = #b}}>>"
        tile = f"tensor<{rows}x64xi32, #b>"
        columns = self.shared(
            "columns", text=f"tt.make_range {{end = 64 : i32, start = 0 : i32}} : {one}"
        )
        lines = self.shared(
            "rows", rows, text=f"tt.make_range {{end = {rows} : i32, start = 0 : i32}} : {row}"
        )
        wide = self.shared(
            "wide",
            text=f"tt.expand_dims {columns} {{axis = 0 : i32}} : {one} -> tensor<1x64xi32, #b>",
        )
        tall = self.shared(
            "tall",
            rows,
            text=f"tt.expand_dims {lines} {{axis = 1 : i32}} : {row} -> tensor<{rows}x1xi32, #b>",
        )
        pitch = self.shared(
            "pitch", rows, text=f"arith.constant dense<64> : tensor<{rows}x1xi32, #b>"
        )
        scaled = self.shared(
            "scaled", rows, text=f"arith.muli {tall}, {pitch} : tensor<{rows}x1xi32, #b>"
        )
        left = self.shared(
            "left", rows, text=f"tt.broadcast {scaled} : tensor<{rows}x1xi32, #b> -> {tile}"
        )
        right = self.shared(
            "right", rows, text=f"tt.broadcast {wide} : tensor<1x64xi32, #b> -> {tile}"
        )
        return self.shared("offsets", rows, text=f"arith.addi {left}, {right} : {tile}")

    def pointers(self, rows: int) -> str:
        """Pointers of a tile; how they lie side by side can be proven."""
        type_ = f"tensor<{rows}x64x!tt.ptr<f16>, #b>"
        base = self.shared("base", rows, text=f"tt.splat %ptr : !tt.ptr<f16> -> {type_}")
        offsets = self.offsets(rows)
        return self.shared(
            "pointers",
            rows,
            text=f"tt.addptr {base}, {offsets} : {type_}, tensor<{rows}x64xi32, #b>",
        )

    def mask(self, rows: int, condition: str) -> str:
        """A mask that is the same for all elements."""
        return self.value(f"tt.splat {condition} : i1 -> tensor<{rows}x64xi1, #b>")

    def row_indices(self, number: int, bits: int, layout: str) -> tuple[str, str]:
        """Rows for gather and scatter: the value and its type."""
        slice_ = f"#ttg.slice<{{dim = 0, parent = #{layout}}}>"
        wide, type_ = f"tensor<{number}xi32, {slice_}>", f"tensor<{number}xi{bits}, {slice_}>"
        index = self.shared(
            "range",
            number,
            layout,
            text=f"tt.make_range {{end = {number} : i32, start = 0 : i32}} : {wide}",
        )
        if bits != 32:
            index = self.shared(
                "short", number, layout, text=f"arith.trunci {index} : {wide} to {type_}"
            )
        return index, type_

    # ---- buffers

    @staticmethod
    def buffer_type(rows: int, depth: int = 0, layout: str = "s") -> str:
        """Type of a tile in LDS, or of several."""
        several = f"{depth}x" if depth else ""
        return f"!ttg.memdesc<{several}{rows}x64xf16, #{layout}, #smem, mutable>"

    def alloc(self, rows: int, depth: int, layout: str = "s") -> str:
        """Several tiles in LDS."""
        return self.value(f"ttg.local_alloc : () -> {self.buffer_type(rows, depth, layout)}")

    def slot(self, buffers: str, index: str, rows: int, depth: int, layout: str = "s") -> str:
        """One of several tiles."""
        types = f"{self.buffer_type(rows, depth, layout)} -> {self.buffer_type(rows, 0, layout)}"
        return self.value(f"ttg.memdesc_index {buffers}[{index}] : {types}")

    def load(self, tile: str, rows: int, layout: str = "s") -> str:
        """Reads a tile of LDS."""
        types = f"{self.buffer_type(rows, 0, layout)} -> tensor<{rows}x64xf16, #b>"
        return self.value(f"ttg.local_load {tile} : {types}")

    # ---- copies and waits

    def copy(self, tile: str, rows: int, layout: str = "s", mask: str | None = None) -> str:
        """Global memory to LDS."""
        pointers = self.pointers(rows)
        short = self.buffer_type(rows, 0, layout).removeprefix("!ttg.memdesc")
        masked = f" mask {self.mask(rows, mask)}" if mask is not None else ""
        return self.value(
            f"ttg.async_copy_global_to_local {pointers}, {tile}{masked} : "
            f"tensor<{rows}x64x!tt.ptr<f16>, #b> -> {short}"
        )

    def buffer_copy(self, tile: str, rows: int, layout: str = "s", mask: str | None = None) -> str:
        """Global memory to LDS through a buffer descriptor."""
        short = self.buffer_type(rows, 0, layout).removeprefix("!ttg.memdesc")
        element = "!tt.ptr<f16>" if self.kernel.host == "3.9.0" else "<f16>"
        masked = f" mask = {self.mask(rows, mask)}" if mask is not None else ""
        return self.value(
            f"amdg.buffer_load_to_local %ptr[{self.offsets(rows)}]{masked} into {tile} : "
            f"{element}[tensor<{rows}x64xi32, #b>] -> {short}"
        )

    def store(self, tile: str, rows: int, layout: str = "s", mask: str | None = None) -> str:
        """LDS to global memory."""
        masked = f" mask {self.mask(rows, mask)}" if mask is not None else ""
        return self.value(
            f"amdg.async_copy_local_to_global {tile}, {self.pointers(rows)}{masked} : "
            f"{self.buffer_type(rows, 0, layout)} -> tensor<{rows}x64x!tt.ptr<f16>, #b>"
        )

    def commit(self, *tokens: str) -> str:
        """Ends a group."""
        return self.value(" ".join(["ttg.async_commit_group", *self._tokens(tokens)]))

    def wait(self, *tokens: str, num: int = 0) -> str:
        """Waits for groups."""
        text = f"ttg.async_wait {', '.join(tokens)}" if tokens else "ttg.async_wait"
        return self.value(f"{text} {{num = {num} : i32}}")

    def tdm_wait(self, *tokens: str, num: int = 0) -> str:
        """Waits for TDM operations."""
        return self.value(f"amdg.async_tdm_wait {', '.join(tokens)} {{num = {num} : i32}}")

    def drain(self) -> None:
        """Waits for all that gfx1250 may have in flight, as it has to at a kernel's end."""
        self.commit()
        self.wait(num=0)
        self.tdm_wait(num=0)

    @staticmethod
    def _tokens(tokens: tuple[str, ...]) -> list[str]:
        return [f"tokens {', '.join(tokens)}"] if tokens else []

    def desc_type(self, rows: int) -> str:
        """Type of a descriptor; one row is for gather and scatter."""
        if self.kernel.old_tdm:
            return f"!tt.tensordesc<tensor<{rows}x64xf16, #s>>"
        return f"!tt.tensordesc<{rows}x64xf16, #s>"

    def _desc(self, rows: int) -> str:
        return f"%d{rows}"

    def _place(self) -> str:
        zero = self.const(0)
        return f"[{zero}, {zero}]" if self.kernel.old_tdm else ""

    def tdm_load(self, tile: str, rows: int) -> str:
        """Global memory to LDS through the tensor data mover."""
        pred = ""
        if self.kernel.old_tdm:
            pred = f", {self.true() if self.kernel.host == '3.6.0' else self.const(1)}"
        return self.value(
            f"amdg.async_tdm_copy_global_to_local {self._desc(rows)}{self._place()} into "
            f"{tile}{pred} : {self.desc_type(rows)} -> {self.buffer_type(rows)}"
        )

    def tdm_store(self, tile: str, rows: int) -> str | None:
        """LDS to global memory through the tensor data mover."""
        text = (
            f"amdg.async_tdm_copy_local_to_global {self._desc(rows)}{self._place()} from {tile} : "
            f"{self.buffer_type(rows)} -> {self.desc_type(rows)}"
        )
        if self.kernel.host == "3.9.0":
            return self.value(text)
        self.emit(text)
        return None

    def rows_copy(
        self, tile: str, number: int, bits: int, *, gather: bool, layout: str = "i"
    ) -> str:
        """Rows that are named by a tensor: gather to LDS, or scatter from there."""
        index, type_ = self.row_indices(number, bits, layout)
        column = f", {self.const(0)}" if self.kernel.old_tdm else ""
        name, word = ("gather", "to") if gather else ("scatter", "from")
        return self.value(
            f"amdg.async_tdm_{name} {self._desc(1)}[{index}{column}] {word} {tile} : "
            f"{type_}, {self.buffer_type(number)} -> {self.desc_type(1)}"
        )
