"""The mask of a multicast behind the offsets of an im2col copy, which Triton 3.8 writes first."""

from __future__ import annotations

import pytest
from triton_ext import backends

COPY = (
    "@$0 cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
    ".multicast::cluster{group} [$1], [$2, {{{coordinates}}}], [${barrier}], {rest};"
)
TILED = (
    "@$0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    ".multicast::cluster [$1], [$2, {$3, $4}], [$5], $6;"
)


def order(text: str) -> str:
    return backends.load("nvidia", "order-multicast-operands")(text)


def copy(rank: int, group: str, *, is_mask_first: bool) -> str:
    barrier = 3 + rank
    coordinates = ", ".join(f"${3 + i}" for i in range(rank))
    first = barrier + 1 + is_mask_first
    offsets = "{" + ", ".join(f"${first + i}" for i in range(rank - 2)) + "}"
    mask = f"${barrier + 1 if is_mask_first else barrier + rank - 1}"
    rest = f"{mask}, {offsets}" if is_mask_first else f"{offsets}, {mask}"
    return COPY.format(
        rank=rank, group=group, coordinates=coordinates, barrier=barrier, rest=rest
    )  # fmt: skip


@pytest.mark.parametrize("group", ["", ".cta_group::2"])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_the_mask_goes_behind_the_offsets(rank, group):
    before = copy(rank, group, is_mask_first=True)
    start, mask, offsets = before[:-1].partition(f"${4 + rank}, {{")
    text = f'call void asm sideeffect "{before}", "b,r"(i1 %p)\n{TILED}\n'
    assert order(text) == text.replace(before, f"{start}{{{offsets}, {mask[:-3]};")
    assert order(order(text)) == order(text)


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_the_right_order_stays(rank):
    text = copy(rank, "", is_mask_first=False) + TILED
    assert order(text) == text
