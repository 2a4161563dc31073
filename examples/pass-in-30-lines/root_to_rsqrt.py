"""1 / sqrt(x) becomes rsqrt(x): one instruction instead of a root and a division."""

import re
from dataclasses import dataclass
from typing import ClassVar

from triton_ext.ir import Builder, Module, Operation
from triton_ext.passes import Pass, PassContext

ONE = re.compile(r"arith\.constant (?:dense<)?1\.0+e\+00>? :")


@dataclass(frozen=True, slots=True)
class RootToRsqrt(Pass):
    name: ClassVar[str] = "example-root-to-rsqrt"
    shared_roots: bool = False  # also where the root has other uses and has to stay

    def run(self, module: Module, context: PassContext) -> None:
        for op in module.walk():
            owners = [operand.owner for operand in op.operands]
            if op.name != "arith.divf" or not all(isinstance(o, Operation) for o in owners):
                continue
            one, root = owners
            if root.name != "math.sqrt" or not ONE.search(str(one)):
                continue
            if len(root.results[0].uses) > 1 and not self.shared_roots:
                context.remark(op, "division stays: its square root is used elsewhere too")
                continue
            text = "{results} = math.rsqrt {0} : {0.type}"
            types = [op.results[0].type]
            op.replace_with(Builder.before(op).create("math.rsqrt", root.operands, types, text))
            context.count("divisions")
            if not root.results[0].uses:
                root.erase()
