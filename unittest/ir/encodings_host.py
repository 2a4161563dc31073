"""The installed Triton's conversion to linear layouts, in a process of its own.

Run as a script it reads one JSON document per line (a layout and a shape) and answers with the
bases; a bad layout ends that process, not the test run.
"""

from __future__ import annotations

import json
import sys
import tempfile

from line_process import LineProcess
from triton_ext.ir import encodings as enc


def describe(encoding) -> list:
    """An encoding as the name and arguments of its Gluon class."""
    match encoding:
        case enc.BlockedEncoding():
            names = ("size_per_thread", "threads_per_warp", "warps_per_cta", "order", "cga_layout")
            return ["BlockedLayout", {name: getattr(encoding, name) for name in names}]
        case enc.SliceEncoding():
            return ["SliceLayout", {"dim": encoding.dim, "parent": describe(encoding.parent)}]
        case enc.DotOperandEncoding():
            return [
                "DotOperandLayout",
                {
                    "operand_index": encoding.operand_index,
                    "parent": describe(encoding.parent),
                    "k_width": encoding.k_width,
                },
            ]
        case enc.NvidiaMmaEncoding():
            names = ("version", "warps_per_cta", "instr_shape", "cga_layout")
            return ["NVMMADistributedLayout", {name: getattr(encoding, name) for name in names}]
        case enc.AmdMfmaEncoding():
            names = ("version", "instr_shape", "transposed", "warps_per_cta", "element_bitwidth")
            fields = {name: getattr(encoding, name) for name in names}
            fields |= {"tiles_per_warp": encoding.tiles, "cga_layout": encoding.cga_layout}
            return ["AMDMFMALayout", fields]
        case enc.AmdWmmaEncoding():
            names = ("version", "transposed", "warp_bases", "reg_bases", "instr_shape")
            fields = {name: getattr(encoding, name) for name in (*names, "cga_layout", "rank")}
            return ["AMDWMMALayout", fields]
        case enc.SwizzledSharedEncoding():
            names = ("vec", "per_phase", "max_phase", "order", "cga_layout")
            return ["SwizzledSharedLayout", {name: getattr(encoding, name) for name in names}]
        case enc.NvmmaSharedEncoding():
            names = ("swizzle_byte_width", "element_bitwidth", "transposed", "fp4_padded")
            fields = {name: getattr(encoding, name) for name in (*names, "cga_layout")}
            return ["NVMMASharedLayout", {**fields, "rank": encoding.given_rank}]
        case enc.SharedLinearEncoding():
            names = ("offset_bases", "block_bases", "alignment")
            return ["SharedLinearLayout", {name: getattr(encoding, name) for name in names}]
        case enc.TensorMemoryEncoding():
            names = ("block", "col_stride", "cga_layout", "two_ctas", "fp4_padded")
            return ["TensorMemoryLayout", {name: getattr(encoding, name) for name in names}]
        case enc.TensorMemoryScalesEncoding():
            return ["TensorMemoryScalesLayout", {"cga_layout": encoding.cga_layout}]
        case enc.LinearEncoding() | enc.GenericLinearEncoding():
            names = ("reg_bases", "lane_bases", "warp_bases", "block_bases")
            fields = {name: getattr(encoding, name) for name in names}
            shape = [size for _, size in encoding.linear_layout.out_dims]
            return ["DistributedLinearLayout", {**fields, "shape": shape}]
    raise TypeError(f"Gluon has no class for {encoding}")


class LayoutHost(LineProcess):
    """Asks a process that runs this file."""

    def __init__(self) -> None:
        super().__init__(__file__)

    def bases(self, encoding, shape) -> dict[str, list]:
        """The bases that the host gives, by input dimension.

        Raises:
            RuntimeError: The host refuses the layout, or ends its process.
        """
        return self._ask({"layout": describe(encoding), "shape": list(shape)})

    def padded(self, text: str, shape) -> dict:
        """The fields of the Gluon layout that the host makes of a padded encoding's text.

        There the CTAs move by what one of them holds, in the text by elements.

        Raises:
            RuntimeError: The host refuses it, or ends its process.
        """
        return self._ask({"padded": text, "shape": list(shape)})

    def text(self, text: str) -> str:
        """A module as the host prints it, without locations.

        Raises:
            RuntimeError: The host refuses the module, or ends its process.
        """
        return self._ask({"text": text})["text"]

    def _ask(self, question: dict) -> dict:
        found = self.exchange(question)
        if "error" in found:
            raise RuntimeError(f"{found['error']}: {question}")
        return found


def _serve() -> None:
    import triton.experimental.gluon.language as gl
    from triton._C.libtriton import amd, gluon_ir, ir, nvidia
    from triton.experimental.gluon.language.nvidia import blackwell

    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    amd.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)

    def make(value):
        if isinstance(value, list) and value and isinstance(value[0], str):
            name, fields = value
            owner = next(m for m in (gl, gl.amd, blackwell) if hasattr(m, name))
            return getattr(owner, name)(**{key: make(item) for key, item in fields.items()})
        return value

    def parse(text):
        with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
            file.write(text)
            file.flush()
            return ir.parse_mlir_module(file.name, context)

    def read_padded(text, shape):
        sizes = "x".join(map(str, shape))
        type_ = f"!ttg.memdesc<{sizes}xf32, {text}, #ttg.shared_memory, mutable>"
        module = parse(f"module {{ tt.func @f(%x: {type_}) {{ tt.return }} }}")
        argument = module.get_function("f").args(0)
        found = builder.get_gluon_layout_from_memdesc(argument)
        names = ("interval_padding_pairs", "offset_bases", "cga_layout", "shape")
        return {name: getattr(found, name) for name in names}

    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "text" in question:
                text = parse(question["text"]).str_nodebug()
                sys.stdout.write(json.dumps({"text": text}) + "\n")
                sys.stdout.flush()
                continue
            if "padded" in question:
                answer = read_padded(question["padded"], question["shape"])
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()
                continue
            layout = make(question["layout"])
            found = builder.to_linear_layout(layout._to_ir(builder), question["shape"])
            answer = {
                name: getattr(found, field)
                for name, field in (
                    ("register", "reg_bases"),
                    ("lane", "lane_bases"),
                    ("warp", "warp_bases"),
                    ("block", "block_bases"),
                    ("offset", "offset_bases"),
                    ("row", "rows"),
                    ("col", "cols"),
                )
                if hasattr(found, field)
            }
        except Exception as error:  # whatever the host raises is its answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
