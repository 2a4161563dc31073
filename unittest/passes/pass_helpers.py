"""Passes that tests run: each does one thing that can be seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from triton_ext.ir import Builder, Module
from triton_ext.passes import Pass, PassContext

TEXT = """\
module {
  tt.func public @f(%x: i32) -> i32 {
    %y = arith.addi %x, %x : i32
    tt.return %y : i32
  }
  tt.func private @g() {
    tt.return
  }
}
"""


@dataclass(frozen=True, slots=True)
class Mark(Pass):
    """Sets an attribute on what it runs on."""

    name: ClassVar[str] = "test-mark"
    anchor: ClassVar[str | None] = None
    attribute: str = "test.mark"
    value: int = 1

    def run(self, module: Module, context: PassContext) -> None:
        module.op.set_attribute(self.attribute, f"{self.value} : i32")
        context.count("marked")


@dataclass(frozen=True, slots=True)
class CountFunction(Pass):
    """Counts the operations of each function."""

    name: ClassVar[str] = "test-count"
    anchor: ClassVar[str | None] = "tt.func"

    def run(self, module: Module, context: PassContext) -> None:
        for op in module.walk():
            context.count("operations")
            if op.name == "arith.addi":
                context.remark(op, "an addition", "it is counted")


@dataclass(frozen=True, slots=True)
class Shorten(Pass):
    """Leaves a range that is shorter than its type, which only Triton's verifier sees."""

    name: ClassVar[str] = "test-shorten"

    def run(self, module: Module, context: PassContext) -> None:
        for op in module.walk():
            if op.name == "tt.make_range":
                op.set_attribute("end", "77 : i32")


@dataclass(frozen=True, slots=True)
class EraseKernel(Pass):
    """Leaves a valid module in which Triton finds no kernel."""

    name: ClassVar[str] = "test-erase-kernel"
    anchor: ClassVar[str | None] = None

    def run(self, module: Module, context: PassContext) -> None:
        for op in [op for op in module.walk() if op.name == "tt.func"]:
            op.erase()


@dataclass(frozen=True, slots=True)
class Break(Pass):
    """Leaves a use in front of its definition behind."""

    name: ClassVar[str] = "test-break"

    def run(self, module: Module, context: PassContext) -> None:
        add = next(op for op in module.walk() if op.name == "arith.addi")
        add.set_operand(0, add.results[0])


@dataclass(frozen=True, slots=True)
class Atan2(Pass):
    """Leaves a valid operation behind that Triton cannot lower."""

    name: ClassVar[str] = "test-atan2"

    def run(self, module: Module, context: PassContext) -> None:
        add = next(op for op in module.walk() if op.name == "arith.addf")
        text = "{results} = math.atan2 {0}, {1} : {results.type}"
        types = [add.results[0].type]
        add.replace_with(Builder.before(add).create("math.atan2", add.operands, types, text))


@dataclass(frozen=True, slots=True)
class Double(Pass):
    """Puts an operation behind each addition."""

    name: ClassVar[str] = "test-double"

    def run(self, module: Module, context: PassContext) -> None:
        for op in module.walk():
            if op.name == "arith.addi":
                value = op.results[0]
                text = "{results} = arith.muli {0}, {0} : i32"
                Builder.after(op).create("arith.muli", [value], ["i32"], text)


@dataclass(frozen=True, slots=True)
class Nothing(Pass):
    """Changes nothing."""

    name: ClassVar[str] = "test-nothing"

    def run(self, module: Module, context: PassContext) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Options(Pass):
    """Has an option of every type."""

    name: ClassVar[str] = "test-options"
    num_stages: int = 3
    fast: bool = False
    scale: float = 1.0
    label: str = ""
    mode: Literal["small", "large"] = "small"
    sizes: tuple[int, ...] = ()
    limit: int | None = None
    renamed: int = field(default=0, metadata={"option": "other-name", "help": "a number"})

    def __post_init__(self) -> None:
        if self.num_stages < 1:
            raise ValueError(f"num-stages must be at least 1, found {self.num_stages}")

    def run(self, module: Module, context: PassContext) -> None:
        context.count("stages", self.num_stages)


@dataclass(frozen=True, slots=True)
class Needs(Pass):
    """Has an option without a default."""

    name: ClassVar[str] = "test-needs"
    target: str

    def run(self, module: Module, context: PassContext) -> None:
        pass


PASSES = {
    cls.name: f"pass_helpers:{cls.__name__}"
    for cls in (Mark, CountFunction, Break, Double, Options, Needs)
}
