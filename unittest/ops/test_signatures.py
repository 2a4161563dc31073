"""Signatures: what people and type checkers see of the functions, and torch of the operators."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="triton_ext.ops needs torch, which is not installed")

import torch
from triton_ext import ops
from triton_ext.ops.api.operators import OPERATORS
from triton_ext.ops.core.problem import ConvParameters

PARAMETERS = {
    "stride": ("Numbers", 1),
    "padding": ("Padding", 0),
    "dilation": ("Numbers", 1),
    "groups": ("int", 1),
}
TRANSPOSED = {
    "stride": ("Numbers", 1),
    "padding": ("Padding", 0),
    "output_padding": ("Numbers", 0),
    "groups": ("int", 1),
    "dilation": ("Numbers", 1),
}
MISSING = inspect.Parameter.empty
TENSORS = {"x": ("Tensor", MISSING), "weight": ("Tensor", MISSING), "bias": ("Tensor | None", None)}
FALLBACK = {"fallback": ("Fallback", "error"), "prefer": ("Prefer", "ours")}
EPILOGUE = {
    "scale": ("Tensor | None", None),
    "residual": ("Tensor | None", None),
    "activation": ("str", "none"),
    "out_scale": ("Tensor | None", None),
    "out_dtype": ("torch.dtype | None", None),
    "amax": ("Tensor | None", None),
    "epilogue": ("Any", None),
    "epilogue_operands": ("Sequence[Tensor] | None", None),
    "out": ("Tensor | None", None),
}
SIZE, TENSOR = ("Sequence[int]", MISSING), ("Tensor", MISSING)
SIGNATURES = {
    "conv{}d": (TENSORS | PARAMETERS, EPILOGUE | FALLBACK),
    "conv_transpose{}d": (TENSORS | TRANSPOSED, FALLBACK),
    "conv{}d_input": (
        {"input_size": SIZE, "weight": TENSOR, "grad_output": TENSOR, **PARAMETERS},
        FALLBACK,
    ),
    "conv{}d_weight": (
        {"x": TENSOR, "weight_size": SIZE, "grad_output": TENSOR, **PARAMETERS},
        FALLBACK,
    ),
}


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("name", SIGNATURES)
def test_functions_have_full_typed_signatures(name, dims):
    function = getattr(ops, name.format(dims))
    positional, keywords = SIGNATURES[name]
    found = inspect.signature(function)
    assert found.return_annotation == "Tensor"
    assert {p.name: (p.annotation, p.default) for p in found.parameters.values()} == {
        **positional,
        **keywords,
    }
    kinds = [p.kind for p in found.parameters.values()]
    assert kinds == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(positional) + [
        inspect.Parameter.KEYWORD_ONLY
    ] * len(keywords)
    assert function.__name__ == name.format(dims)
    # Docstrings are those of two dimensions in other words.
    words = {1: ("[N, Ci, L]", "S]"), 2: ("[N, Ci, H, W]", "R, S]"), 3: ("D, H, W]", "T, R, S]")}
    assert all(word in function.__doc__ for word in words[dims])
    assert set(re.findall(r"(?:conv|transpose)(\d)d", function.__doc__)) == {str(dims)}
    assert "channels_last" not in function.__doc__ or dims > 1


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_schemas_have_the_parameters_as_flat_arguments(operator):
    for name in filter(None, (operator.name, operator.differentiable)):
        schema = getattr(torch.ops.triton_ext, name).default._schema
        names = [argument.name for argument in schema.arguments]
        first = len(operator.tensors)
        assert tuple(names[first : first + 4]) == ConvParameters._fields
        flat = list(range(len(names)))
        flat[first : first + 4] = [1, 2], [0, 1, 2, 3], [1, 1], 3
        call = operator.call(flat)
        assert call.parameters == ConvParameters((1, 2), (0, 1, 2, 3), (1, 1), 3)
        assert list(call.flat()) == [tuple(v) if isinstance(v, list) else v for v in flat]


@pytest.mark.slow  # mypy reads the whole package
def test_mypy_sees_the_signatures(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    file = tmp_path / "called.py"
    file.write_text(
        "from triton_ext import ops\n"
        "reveal_type(ops.conv2d)\n"
        "ops.conv2d(1, 2, strides=1)\n"
        "ops.conv_transpose1d('x')\n"
        "reveal_type(ops.conv_transpose1d)\n"
    )
    command = (sys.executable, "-m", "mypy", "--config-file", "", str(file))
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=600
    )
    assert "fallback:" in done.stdout
    assert "epilogue_operands:" in done.stdout
    assert 'called.py:3: error: Unexpected keyword argument "strides"' in done.stdout
    # A copy has the type of the function, without its name in errors.
    assert "called.py:4: error: Too few arguments" in done.stdout
    assert "output_padding:" in done.stdout
