"""The model of asynchronous copies, and what it finds of Triton's own wait counts."""

from __future__ import annotations

import pytest
from async_host import Host
from async_mistakes import CASES, make
from async_model import Counts, Program, wrong_numbers
from triton_ext.host import HostError
from triton_ext.ir import parse

SCHEDULES = range(300)


@pytest.fixture(scope="module")
def host():
    try:
        opened = Host()
    except HostError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def each_case():
    for case in CASES:
        for arch in case.arches:
            yield pytest.param(case, arch, id=f"{case.name}-{arch}")


@pytest.mark.parametrize(("case", "arch"), each_case())
def test_the_case_is_right_and_triton_is_not(case, arch, host):
    if host.version not in case.hosts:
        pytest.skip(f"triton {host.version} gives a right number, or has no such operation")
    text = make(case, host.version, arch)
    assert host.problems(text) == []
    module = parse(text)
    module.verify()
    program = Program(module, case.emitted_of(arch), case.may_skip)
    assert program.search(SCHEDULES, Counts.contract(module)) == []
    counts = host.counts(text, arch)
    if case.dies:
        assert isinstance(counts, list)
        assert any("aborted while running" in message for message in counts)
        return
    assert isinstance(counts, Counts)
    kinds = {fault.kind for fault in wrong_numbers(program.search(SCHEDULES, counts))}
    # Not only lets the wait something through: LDS is used before it may be.
    assert kinds > {"wait"}
    assert program.truncated == 0


@pytest.mark.parametrize(("case", "arch"), list(each_case()))
def test_our_numbers_hold_where_tritons_do_not(case, arch, host):
    if host.version not in case.hosts:
        pytest.skip(f"triton {host.version} gives a right number, or has no such operation")
    text = make(case, host.version, arch)
    program = Program(parse(text), case.emitted_of(arch), case.may_skip)
    assert program.search(SCHEDULES, host.ours(parse(text), arch)) == []
