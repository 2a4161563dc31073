"""Checks of the launchers' arguments besides tensors, by the argument's name."""

from __future__ import annotations

from typing import Any

import torch
from triton_ext.errors import LaunchError
from triton_ext.ops.api.checks import kind_of

__all__ = ["check_compile", "check_parameters", "check_tensors", "steps_of"]

_DTYPES = ("fp16", "bf16")


def check_tensors(**tensors: object) -> None:
    """Refuses what is no dense tensor of 1 to 3 spatial dimensions, by the argument's name.

    Raises:
        LaunchError: All that is wrong with them.
    """
    problems = []
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            problems.append(f"{name} is {kind_of(value)}: expected a tensor")
        elif value.layout is not torch.strided or value.is_nested or value.is_quantized:
            kind = "nested" if value.is_nested else "quantized"
            kind = str(value.layout) if value.layout is not torch.strided else kind
            problems.append(f"{name} is {kind}: expected a dense tensor")
        elif not 3 <= value.dim() <= 5 or 0 in value.shape:
            problems.append(
                f"{name} is {list(value.shape)}: expected 3 to 5 dimensions, none of them empty"
            )
        elif value.device.type not in ("cpu", "cuda"):
            problems.append(f"{name} is on {value.device}: expected a CUDA device, or the CPU")
    if problems:
        raise LaunchError("; ".join(problems))


def check_parameters(
    dims: int,
    config_classes: tuple[type, ...],
    config: object,
    launcher: object,
    *,
    stride: object,
    padding: object,
    dilation: object,
    sizes: tuple[str, object] | None = None,
    has_sides: bool = True,
    least_padding: int | None = None,
) -> None:
    """Refuses arguments of a wrong type, count or range.

    Args:
        dims: Spatial dimensions of the tensors; counts are compared where these are 1 to 3.
        config_classes: Of the kernel's configurations.  Subclasses do not count: the tile of a
            cluster's configuration is that of another kernel.
        config: A configuration, or ``None``.
        launcher: What launches the kernel, or ``None``.
        stride: One int, or one per spatial dimension; at least 1.
        padding: The same; negative ones cut off, where there is no least one.
        dilation: The same; at least 1.
        sizes: Name and value of a size that is given per spatial dimension; at least 1.
        has_sides: Whether a padding may be (low, high) per spatial dimension.
        least_padding: The least value of a padding without sides.

    Raises:
        LaunchError: All that is wrong with them.
    """
    problems = []
    for name, value, least in (("stride", stride, 1), ("dilation", dilation, 1)):
        if not (_is_int(value, least) or _are_ints(value, dims, least)):
            problems.append(
                f"{name} is {value!r}: expected an int, or {dims} of them, each at least {least}"
            )
    if not (
        _is_int(padding, least_padding)
        or _are_ints(padding, dims, least_padding)
        or (has_sides and _sides(padding, dims))
    ):
        sides = " or pairs (low, high)" if has_sides else ", what is in front"
        least_text = "" if least_padding is None else f", each at least {least_padding}"
        problems.append(
            f"padding is {padding!r}: expected an int, or {dims} ints{sides}{least_text}"
        )
    if sizes is not None and not _are_ints(sizes[1], dims, 1):
        problems.append(f"{sizes[0]} is {sizes[1]!r}: expected {dims} ints, each at least 1")
    if config is not None and type(config) not in config_classes:
        names = " or ".join(each.__name__ for each in config_classes)
        problems.append(f"config is a {type(config).__name__}: expected a {names}, or None")
    if launcher is not None and not callable(launcher):
        problems.append(f"launcher is {launcher!r}: expected a function such as xnv.emulated")
    if problems:
        raise LaunchError("; ".join(problems))


def check_compile(
    config_class: type,
    config: object,
    rank: object,
    dtype: object,
    capability: object,
    **counts: object,
) -> None:
    """Refuses what a kernel cannot be compiled ahead of time for.

    Args:
        config_class: Of the kernel's configurations; subclasses do not count.
        config: The configuration.
        rank: Of the tensor that is loaded through an im2col descriptor; 2 for a matrix.
        dtype: Of the tensors.
        capability: Compute capability times ten.
        counts: Further numbers by name; at least 1.

    Raises:
        LaunchError: All that is wrong with them.
    """
    problems = [
        f"{name} is {value!r}: expected an int of at least 1"
        for name, value in counts.items()
        if not _is_int(value, 1)
    ]
    if type(config) is not config_class:
        wanted = config_class.__name__
        hint = "; in_cluster makes one of a TileConfig" if wanted == "ClusterConfig" else ""
        problems.append(f"config is a {type(config).__name__}: expected a {wanted}{hint}")
    else:
        problems += [f"configuration {config}: {problem}" for problem in config.refusals()]
    if type(rank) is not int or not 2 <= rank <= 5:
        problems.append(f"rank is {rank!r}: expected 2 to 5")
    if str(dtype) not in _DTYPES:
        problems.append(f"dtype is {dtype!r}: expected gl.float16 or gl.bfloat16")
    if type(capability) is not int or not 90 <= capability < 100:
        problems.append(f"capability is {capability!r}: expected 90, WGMMA is of sm_90 alone")
    if problems:
        raise LaunchError("; ".join(problems))


def steps_of(rank: int, **steps: object) -> list[tuple[int, ...]]:
    """Returns what is given for all spatial dimensions or for each, one int for each.

    Args:
        rank: Of the tensor that is loaded through an im2col descriptor; 2 for a matrix.
        steps: What is given, by the argument's name.

    Raises:
        LaunchError: All that is not an int, or not one for each dimension, of at least 1.
    """
    dims = rank - 2
    wanted = f"an int, or {dims} of them, each at least 1" if dims else "an int of at least 1"
    problems = [
        f"{name} is {value!r}: expected {wanted}"
        for name, value in steps.items()
        if not (_is_int(value, 1) or (dims and _are_ints(value, dims, 1)))
    ]
    if problems:
        raise LaunchError("; ".join(problems))
    return [(value,) * dims if isinstance(value, int) else tuple(value) for value in steps.values()]


def _is_int(value: Any, least: int | None = None) -> bool:
    return type(value) is int and (least is None or value >= least)


def _are_ints(value: Any, count: int, least: int | None = None) -> bool:
    """Returns whether it is a sequence of ``count`` ints; of any length if that is no rank."""
    if not isinstance(value, (tuple, list)) or (1 <= count <= 3 and len(value) != count):
        return False
    return all(_is_int(each, least) for each in value)


def _sides(value: Any, count: int) -> bool:
    """Returns whether it is a sequence of ``count`` pairs of ints."""
    if not isinstance(value, (tuple, list)) or (1 <= count <= 3 and len(value) != count):
        return False
    return all(_are_ints(each, 0) and len(each) == 2 for each in value)
