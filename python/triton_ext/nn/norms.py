"""``torch.nn``'s BatchNorm, GroupNorm and InstanceNorm with channels-last kernels.

Each is a subclass of torch's: the same constructor, parameters, buffers and state dict, and
``isinstance`` tells no difference.  What follows a norm in a forward may be computed with it, in
training as well as in eval mode:

    BatchNorm -> + residual? -> ReLU?
    BatchNorm, GroupNorm, InstanceNorm -> ReLU, SiLU, GELU, Tanh?

Every call checks whether a kernel gives what torch gives: the input's kind, shape, memory order and
dtype, autocast, transforms of ``torch.func``, and, for what follows, hooks and replaced modules.
Otherwise torch's own forward runs, and the operations behind it run one by one.  The same holds in
graphs of ``torch.compile`` for those norms that Inductor generates
(``IS_OPERATOR`` of :mod:`triton_ext.ops.norms.checks`).
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.fx import Proxy

from triton_ext.nn.channel_norms import ChannelNorm
from triton_ext.nn.steps import add_and_activate, is_watched, name_of, refuse_scripting
from triton_ext.ops import norms as kernels
from triton_ext.ops.core.dispatch_cache import ALIGNMENT, cached, is_autocast
from triton_ext.ops.norms.checks import Kind, is_left_to_torch, is_negated, is_operator
from triton_ext.ops.norms.functional import norm_key
from triton_ext.ops.norms.functional import normalize as run
from triton_ext.ops.norms.plan import NormPlan, Running

#: The names of the modules.
NORMS = (
    *("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm"),
    *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"),
)

__all__ = [
    "NORMS",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "normalize",
]

Tensor = torch.Tensor


class _Norm:
    """Mixin of all norm modules; the first of their bases."""

    def __prepare_scriptable__(self) -> NoReturn:
        # torch.jit.script asks every module which object to compile instead of it.
        refuse_scripting(self)

    def forward(self, input: Tensor) -> Tensor:
        """Normalizes, by a kernel where one gives torch's result."""
        if isinstance(input, Proxy):
            return self._record(input)
        y = self.normalized(input, None, "none")
        if y is None:
            y = super().forward(input)  # type: ignore[misc]
        return y

    def normalized(self, x: Any, residual: Any, activation: str) -> Tensor | None:
        """Returns a kernel's output; ``None`` where torch has to compute it.

        Args:
            x: The module's input.
            residual: The tensor to add, or None.
            activation: Name of the activation, as in epilogues.
        """
        raise NotImplementedError

    def _record(self, input: Any) -> Any:
        """Records a call of this module as torch.fx records those of torch's own norms."""
        tracer = input.tracer
        name = tracer.path_of_module(self)
        if not name:
            return super().forward(input)  # type: ignore[misc]
        return tracer.create_proxy("call_module", name, (input,), {})


class _BatchNorm(_Norm):
    """The norms over batches; subclasses have the number of their input's dimensions."""

    _rank: int

    def normalized(self, x: Any, residual: Any, activation: str) -> Tensor | None:
        """Returns a kernel's output, as the base says; counts the batch if there is one."""
        module: Any = self
        tracked = not module.training or module.track_running_stats
        mean = _buffer(module, "running_mean") if tracked else None
        variance = _buffer(module, "running_var") if tracked else None
        if (mean is None) is not (variance is None):
            return None
        of_batch = True if module.training else mean is None
        weight, bias = _parameter(module, "weight"), _parameter(module, "bias")
        name, eps = _NAMES.get(activation, activation), module.eps
        tensors = (x, weight, bias, mean, variance, residual)
        plan = cached(norm_key(tensors, of_batch, name, eps))
        if plan is None or not self._is_of(plan, of_batch):
            plan = None
            if not self._has_kernel(x, weight, bias, mean, variance, residual, of_batch, name):
                return None
        momentum, counted = module.momentum, None
        if module.training and module.track_running_stats:
            if momentum is None and torch.compiler.is_compiling():
                return None  # a graph would hold the number of batches as a constant
            # Count as torch's own forward does.
            batches = _buffer(module, "num_batches_tracked")
            if plan is not None and type(momentum) is float and _is_counter(batches, x):
                counted = batches
            elif batches is not None:
                batches.add_(1)
                if momentum is None:
                    momentum = 1.0 / float(batches)
        if momentum is None:
            momentum = 0.0
        if plan is not None and type(momentum) is float:
            running = Running(mean, variance, momentum, counted)
            return run(plan, x, weight, bias, residual, running, is_cached=True)
        result: Tensor = kernels.batch_norm(
            x,
            weight,
            bias,
            mean,
            variance,
            training=of_batch,
            momentum=momentum,
            eps=eps,
            activation=name,
            residual=residual,
        )
        return result

    def _is_of(self, plan: NormPlan, of_batch: bool) -> bool:
        """Tells whether what a plan computes is this module's to compute."""
        module: Any = self
        return (
            plan.shape.channels == module.num_features
            and len(plan.strides) == self._rank
            and (not of_batch or module.eps > 0)
        )

    def _has_kernel(
        self,
        x: Any,
        weight: Any,
        bias: Any,
        mean: Any,
        variance: Any,
        residual: Any,
        of_batch: bool,
        name: str,
    ) -> bool:
        """Tells whether a kernel gives what torch gives."""
        module: Any = self
        if not _is_own(x, "training" if of_batch else "evaluation"):
            return False
        if x.dim() != self._rank or x.shape[1] != module.num_features:
            return False
        if of_batch and (x.numel() <= x.shape[1] or module.eps <= 0):
            return False  # torch raises its own error for too small a batch or a bad eps
        if not _are_plain(weight, bias) or not _fits(residual, x):
            return False
        if mean is not None and not (_is_running(mean, x) and _is_running(variance, x)):
            return False
        return kernels.norm_problem("batch", x, None, weight, bias, residual, name) is None


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d``; the kernel takes [N, C, L] with ``x.stride(1)`` of 1."""

    _rank = 3


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d``; the kernel takes ``torch.channels_last`` inputs."""

    _rank = 4


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d``; the kernel takes ``torch.channels_last_3d`` inputs."""

    _rank = 5


class _GroupNorm(_Norm):
    """The norms over groups of channels; subclasses name the attributes with their numbers."""

    _ranks: tuple[int, ...] = (3, 4, 5)
    _channels: str
    _groups: str

    def normalized(self, x: Any, residual: Any, activation: str) -> Tensor | None:
        """Returns a kernel's output, as the base says; there is none with a residual."""
        module: Any = self
        if residual is not None or getattr(module, "track_running_stats", False):
            return None
        channels, groups = getattr(module, self._channels), getattr(module, self._groups)
        weight, bias = _parameter(module, "weight"), _parameter(module, "bias")
        name = _NAMES.get(activation, activation)
        plan = cached(norm_key((x, weight, bias), groups, name, module.eps))
        if plan is not None and self._is_of(plan, x, channels):
            return run(plan, x, weight, bias, is_cached=True)
        if not _is_own(x, "group") or x.dim() not in self._ranks:
            return None
        if x.shape[1] != channels or x.numel() <= x.shape[0] * groups:
            return None  # torch raises its own error
        if not _are_plain(weight, bias):
            return None
        if not x.is_cuda and is_autocast(x.device.type):
            return None  # autocast on CPUs computes other operations in fp32 than on GPUs
        if kernels.norm_problem("group", x, groups, weight, bias, None, name) is not None:
            return None
        return kernels.group_norm(x, groups, weight, bias, eps=module.eps, activation=name)

    def _is_of(self, plan: NormPlan, x: Tensor, channels: int) -> bool:
        """Tells whether what a plan computes is this module's to compute."""
        # Each group of a plan has at least two values, so their number needs no check.
        return (
            plan.shape.channels == channels
            and len(plan.strides) in self._ranks
            and (x.is_cuda or not is_autocast(x.device.type))
        )


class GroupNorm(_GroupNorm, torch.nn.GroupNorm):
    """``torch.nn.GroupNorm``; the kernel takes channels-last inputs, and returns such."""

    _channels, _groups = "num_channels", "num_groups"


class _InstanceNorm(_GroupNorm):
    """The norms over one channel of one image: groups of one channel.

    Without ``track_running_stats``, torch's default; with it, torch's own forward runs.
    """

    _channels = _groups = "num_features"


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """``torch.nn.InstanceNorm1d``; the kernel takes [N, C, L] with ``x.stride(1)`` of 1."""

    _ranks = (3,)


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """``torch.nn.InstanceNorm2d``; the kernel takes ``torch.channels_last`` inputs."""

    _ranks = (4,)


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """``torch.nn.InstanceNorm3d``; the kernel takes ``torch.channels_last_3d`` inputs."""

    _ranks = (5,)


# Names of kernels where they differ from those of epilogues.
_NAMES = {"none": "identity"}


# Attribute look-ups of torch's modules, with a shorter way for parameters and buffers.


def _parameter(module: Any, name: str) -> Any:
    known = module._parameters
    return known[name] if name in known else getattr(module, name)


def _buffer(module: Any, name: str) -> Any:
    known = module._buffers
    return known[name] if name in known else getattr(module, name)


def _is_own(x: object, kind: Kind) -> bool:
    """Tells whether our kernel may compute an input: a plain tensor, and in graphs our operator."""
    return type(x) in _TENSORS and (not is_left_to_torch() or is_operator(kind))


_TENSORS = (Tensor, torch.nn.Parameter)


def _are_plain(*tensors: object) -> bool:
    """Tells whether no tensor is of a subclass that computes by itself, such as a sharded one."""
    return all(tensor is None or type(tensor) in _TENSORS for tensor in tensors)


def _is_running(tensor: Any, x: Tensor) -> bool:
    """Tells whether the kernels can read and write running statistics."""
    return (
        type(tensor) in _TENSORS
        and tensor.shape == x.shape[1:2]
        and tensor.dtype in (x.dtype, torch.float32)
        and tensor.device == x.device
        and tensor.is_contiguous()
        and not is_negated(tensor)
    )


def _is_counter(batches: Any, x: Tensor) -> bool:
    """Tells whether the kernel that updates running statistics can also count batches."""
    return (
        type(batches) is Tensor
        and batches.dtype is torch.int64
        and batches.dim() == 0
        and not batches.data_ptr() % ALIGNMENT
        and batches.device == x.device
        and not batches.is_neg()
    )


def _fits(residual: Any, x: Tensor) -> bool:
    """Tells whether a residual can be added without broadcasting or a cast."""
    return residual is None or (
        type(residual) in _TENSORS and residual.shape == x.shape and residual.dtype == x.dtype
    )


def normalize(norm: Any, activation: Any, x: Any, residual: Any, adds: str) -> Any:
    """Normalizes, adds and activates; recorded forwards call it.

    Args:
        norm: The norm.
        activation: The module of the activation, its name where it is a function, or None.
        x: The norm's input.
        residual: The tensor to add, or None.
        adds: ``"+"``, ``"+="``, or empty if nothing is added.
    """
    name = name_of(activation)
    is_ours = type(norm) in _CHAINED or isinstance(norm, ChannelNorm)
    if name is not None and is_ours and not is_watched(norm, activation):
        y = None
        if not adds or residual is not None:
            y = norm.normalized(x, residual if adds else None, name)
        if y is not None:
            return y
    return add_and_activate(norm(x), activation, residual, adds)


_CHAINED = (
    *(BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm),
    *(InstanceNorm1d, InstanceNorm2d, InstanceNorm3d),
)
