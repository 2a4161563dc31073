"""Forward convolutions in clusters of two CTAs without a GPU: configurations, compiled code."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from triton_ext.errors import LaunchError, UnsupportedError
from triton_ext.host import capabilities

torch = pytest.importorskip("torch", reason="the examples' launchers need torch")
CAPABILITY = capabilities()["im2col-gluon"]
if not CAPABILITY.available:
    pytest.skip(CAPABILITY.reason, allow_module_level=True)

# The examples are not installed; they are imported from the root of the checkout.  E402: hosts
# without im2col cannot import them.
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from cubin_resources import resources  # noqa: E402
from triton_ext.ops.core.device import RESERVED_BYTES  # noqa: E402
from triton_ext.ops.families.gluon_config import (  # noqa: E402
    CONFIGS,
    cooperative,
    keep_filter,
    ping_pong,
)

from examples.gluon.hopper import fprop, fprop_cluster  # noqa: E402
from examples.gluon.hopper.fprop_cluster import in_cluster  # noqa: E402


def can_compile() -> bool:
    try:
        fprop_cluster.check_host()
    except UnsupportedError:
        return False
    return True


needs_clusters = pytest.mark.skipif(not can_compile(), reason="needs Triton 3.8 or newer")


# ---- Configurations ----------------------------------------------------------------------------


@pytest.mark.parametrize("config", fprop_cluster.CLUSTER_CONFIGS, ids=str)
def test_configurations_can_run(config):
    assert not config.refusals()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_cluster_is_two_of_them(config):
    pair = in_cluster(config)
    assert pair.block_m == 2 * config.block_m
    assert (pair.x_bytes, pair.w_bytes) == (config.x_bytes, config.w_bytes)
    assert pair.smem_bytes == config.smem_bytes + 8 * config.stages
    assert str(pair) != str(config)


def test_what_cannot_run_is_named():
    kept = keep_filter(ping_pong(128, 64, 4, store_n=32), 6)
    assert kept is not None
    assert [*map(str, in_cluster(kept).refusals())] == [
        "a filter that stays in shared memory is loaded once: nothing to share"
    ]
    alone = in_cluster(cooperative(64, 1, 64, 6))
    assert [*map(str, alone.refusals())] == ["consumers is 1: a CTA of a cluster has 2 or 3"]
    deep = dataclasses.replace(in_cluster(ping_pong(128, 128, 6)), stages=7)
    assert any("B of shared memory" in str(problem) for problem in deep.refusals())


# ---- Launch ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Recorder:
    """What is launched in place of a kernel."""

    grid: tuple[int, ...] = ()
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, kernel: Any) -> Recorder:
        return self

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            self.grid, self.arguments, self.options = grid, arguments, options

        return launch


@needs_clusters
@pytest.mark.parametrize("taps", [1, 3])
def test_a_launch(taps):
    x = torch.zeros(2, 20, 20, 72, dtype=torch.float16)
    w = torch.zeros(136, taps, taps, 72, dtype=torch.float16)
    config = in_cluster(cooperative(64, 2, 128, 5, block_n_rest=32, store_n=32))
    seen = Recorder()
    y = fprop.conv_fprop(x, w, 1, taps // 2, config=config, launcher=seen)
    assert y.shape == (2, 20, 20, 136)
    # 800 pixels are 4 tiles of 256; 4 multiprocessors are 2 clusters.
    assert seen.grid == (2,)
    assert seen.options == {"num_warps": 4, "num_ctas": 2}
    x_desc, main, rest, y_desc, problem, given = seen.arguments
    assert given is config
    assert problem.m_gemm == 800
    assert [list(desc.block_shape) for desc in (x_desc, main, rest, y_desc)] == [
        [128, 64],
        [128, 1, 64],
        [32, 1, 64],
        [128, 32],
    ]
    assert hasattr(x_desc, "pixel_box_lower_corner") == (taps == 3)
    assert x_desc.layout.cga_layout == y_desc.layout.cga_layout == [[1, 0]]
    assert main.layout.cga_layout == rest.layout.cga_layout == [[0, 0, 0]]


@needs_clusters
def test_a_configuration_that_does_not_fit_is_refused():
    x = torch.zeros(2, 8, 8, 64, dtype=torch.float16)
    w = torch.zeros(64, 3, 3, 64, dtype=torch.float16)
    with pytest.raises(LaunchError, match="consumers is 1: a CTA of a cluster has 2 or 3"):
        fprop.conv_fprop(x, w, config=in_cluster(cooperative(64, 1, 64, 6)), launcher=Recorder())


@pytest.mark.skipif(can_compile(), reason="this Triton can")
def test_older_hosts_are_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"clusters need Triton 3\.8 or newer"):
        fprop_cluster.compile_conv_fprop_cluster(fprop_cluster.CLUSTER_CONFIGS[0])


# ---- Compiled code -----------------------------------------------------------------------------


def instructions(ptx: str, name: str) -> list[tuple[str, str]]:
    """The instructions of a name: each with its predicate, "" for none."""
    found = re.findall(rf"^\s*(?:@(\S+)\s+)?({name}[^;]*);", ptx, re.MULTILINE)
    return [(predicate, text) for predicate, text in found]


def definitions(ptx: str, register: str) -> Iterator[str]:
    """What writes a register: its own instructions, and those of what these read."""
    todo, seen = [register], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for text in re.findall(rf"^\s*(?!@)\S+ \t?{re.escape(name)}, [^;]*;", ptx, re.MULTILINE):
            yield text
            todo += re.findall(r"%\w+", text.partition(",")[2])


@needs_clusters
@pytest.mark.parametrize("rank", [2, 4])
@pytest.mark.parametrize("index", [2, 6], ids=lambda index: str(CONFIGS[index]))
def test_compiled_code(index, rank, fresh_triton_cache, tmp_path):
    config = fprop_cluster.CLUSTER_CONFIGS[index]
    compiled = fprop_cluster.compile_conv_fprop_cluster(config, rank=rank)
    ptx = compiled.asm["ptx"]
    assert re.search(r"\.reqnctapercluster 2\b", ptx)
    assert compiled.metadata.num_ctas == 2
    assert compiled.metadata.shared <= config.smem_bytes + RESERVED_BYTES

    # The filter: into both CTAs, bits 0 and 1 of the mask, and only CTA 0 issues it.
    shared = instructions(ptx, r"cp\.async\.bulk\.tensor\.3d")
    accumulators = 1 + (config.block_n_rest > 0)
    assert len(shared) == accumulators
    for predicate, text in shared:
        assert ".multicast::cluster" in text
        mask = text.rpartition(",")[2].strip()
        assert list(definitions(ptx, mask)) == [f"\tmov.b16 \t{mask}, 3;"]
        assert any("%cluster_ctarank" in each for each in definitions(ptx, predicate))

    # The pixels: each CTA its own.
    mode = r"4d\S*\.im2col" if rank == 4 else r"2d\.shared"
    own = instructions(ptx, rf"cp\.async\.bulk\.tensor\.{mode}")
    assert len(own) == config.row_groups
    assert not any(".multicast" in text for _, text in own)

    # Each consumer releases a stage twice in the loop and behind it: to its own producer, and to
    # CTA 0's, whose barrier is in the cluster's shared memory; in ping-pong it hands on its turn.
    arrivals = [text for _, text in instructions(ptx, r"mbarrier\.arrive\.shared")]
    remote = [text for text in arrivals if "shared::cluster" in text]
    assert len(remote) == 2 * config.consumers
    assert len(arrivals) == len(remote) * 2 + config.consumers * config.ping_pong

    # pair[s]: initialised in CTA 0 alone, for the consumers of both.
    counts = [text.rpartition(",")[2].strip() for _, text in instructions(ptx, r"mbarrier\.init")]
    assert counts.count(str(2 * config.row_groups)) >= config.stages
    assert len(counts) == 3 * config.stages + 2

    # Both have initialised their barriers before either goes on.
    first = ptx.index("barrier.cluster.wait")
    assert ptx.index("fence.mbarrier_init.release.cluster") < first
    assert ptx.rindex("mbarrier.init") < first < ptx.index("mbarrier.arrive")

    used = resources(compiled.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0, "registers were spilled"
