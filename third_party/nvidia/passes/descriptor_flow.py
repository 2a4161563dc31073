"""Which values are the descriptors of im2col loads: what changes its type when they are lowered.

A descriptor is a kernel argument; ``ttg.warp_specialize`` hands it to its partitions.  Triton has
no reason to carry a host descriptor through a loop or to choose one, so everything else is refused
by name, at the user's line.
"""

from __future__ import annotations

from triton_ext.ir import Value
from triton_ext.passes import error_at

from ..dialect.ttng import TmaLoad, kernel_argument
from .marker_flow import MarkerFlow

__all__ = ["descriptor_values"]


def descriptor_values(flow: MarkerFlow) -> tuple[Value, ...]:
    """Returns every value that is the descriptor of one of the loads, wherever it is captured.

    Raises:
        PassError: A descriptor is not a kernel argument, is read with different ranks, is used as a
            tiled one, or takes a way that is not covered.
    """
    loads = {load.op for load in flow.loads}
    ranks: dict[Value, int] = {}
    found: dict[Value, None] = {}
    for load in flow.loads:
        root = _root(load)
        # The channel marker has an offset for each dimension but the images and the channels.
        rank = flow.kinds[load.coord[1]].arity + 1
        if ranks.setdefault(root, rank) != rank:
            raise error_at(
                load.op,
                f"the descriptor {root.name} is read with {rank} coordinates here and with "
                f"{ranks[root]} elsewhere: a descriptor has one rank",
            )
        todo = [root]
        while todo:
            value = todo.pop()
            if value in found:
                continue
            found[value] = None
            for use in value.uses:
                if use.op.name == "ttg.warp_specialize":
                    todo += [region.blocks[0].args[use.index] for region in use.op.regions[1:]]
                elif use.op not in loads:
                    raise error_at(
                        use.op,
                        f"the descriptor {root.name} is read with load_im2col and also used by "
                        f"{use.op.name!r}: pass two descriptors",
                    )
    return tuple(found)


def _root(load: TmaLoad) -> Value:
    root = kernel_argument(load.desc)
    if root is None:
        raise error_at(
            load.op,
            "load_im2col needs a descriptor that is a kernel argument (an Im2ColDescriptor); this "
            "one is made, chosen or carried inside the kernel, or used in a noinline function",
        )
    return root
