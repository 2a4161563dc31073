"""Keys of tuning, configurations as JSON, and tables as files that several processes write."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import pathlib
import pwd
import re
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from fractions import Fraction

import pytest

hypothesis = pytest.importorskip("hypothesis")
pytest.importorskip("torch")

import torch  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from triton_ext.ops.core import tables as lookups  # noqa: E402
from triton_ext.ops.core.case import (  # noqa: E402
    DIRECTIONS,
    Case,
    round_up,
)
from triton_ext.ops.core.device import Device  # noqa: E402
from triton_ext.ops.core.epilogue import EpilogueSpec  # noqa: E402
from triton_ext.ops.core.family import (  # noqa: E402
    FAMILIES,
    config_refusals,
    families_of,
)
from triton_ext.ops.core.problem import ConvProblem  # noqa: E402
from triton_ext.ops.core.tables import (  # noqa: E402
    SCHEMA,
    Entry,
    KindError,
    Table,
    TableError,
    TuningWarning,
    decode,
    encode,
    file_name,
    kind_of,
    merged,
    read_table,
)
from triton_ext.ops.families import gemm_config, gluon_config, wgrad  # noqa: E402
from triton_ext.ops.families.depthwise import DepthwiseConfig, DepthwiseWgradConfig  # noqa: E402
from triton_ext.ops.families.direct import DirectConfig  # noqa: E402
from triton_ext.ops.families.few_channels import Col2ImConfig, GatherConfig  # noqa: E402
from triton_ext.ops.families.gluon_wgrad import WgradTileChoice, WgradTileConfig  # noqa: E402
from triton_ext.ops.families.partial_im2col import AsFpropConfig, PackedConfig  # noqa: E402
from triton_ext.ops.families.patches import PatchConfig  # noqa: E402
from triton_ext.ops.tuning import store  # noqa: E402
from triton_ext.ops.tuning.runs import candidates  # noqa: E402
from triton_ext.ops.tuning.store import update_table, write_table  # noqa: E402

from benchmarks.suites import select_layers  # noqa: E402

GPU = "NVIDIA Test GPU"
MACHINE = Device(132, (9, 0), 232448, GPU)


def problem(**changes) -> ConvProblem:
    plain = {
        "batch": 8,
        "in_channels": 64,
        "out_channels": 128,
        "input_size": (28, 28),
        "filter_size": (3, 3),
        "stride": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
    }
    return ConvProblem(**{**plain, **changes})


# ---- keys --------------------------------------------------------------------------------------


def case_of(direction, problem):
    return Case(direction=direction, problem=problem, dtype=torch.float16)


counts = st.integers(0, 1 << 40)
units = st.integers(1, 4096)


@given(counts, units)
def test_rounding_up_is_total_and_by_less_than_a_quarter(count, unit):
    exact, rounded = Fraction(count, unit), Fraction(round_up(count, unit))
    assert exact <= rounded
    assert rounded < exact * Fraction(5, 4) or count == 0
    # Three significant binary digits, so that a rounded number stays what it is.
    digits = rounded.numerator >> max(0, rounded.numerator.bit_length() - 3)
    assert rounded.numerator == digits << max(0, rounded.numerator.bit_length() - 3)


@given(counts, counts, units)
def test_rounding_up_is_monotone(a, b, unit):
    assert (a <= b) <= (round_up(a, unit) <= round_up(b, unit))


@pytest.mark.parametrize(
    ("count", "unit", "expected"),
    [
        (0, 9, 0.0),
        (132, 132, 1.0),
        (133, 132, 1.25),
        (264, 132, 2.0),
        (265, 132, 2.5),
        (1, 3, 0.375),
    ],
)
def test_rounding_up(count, unit, expected):
    assert round_up(count, unit) == expected


problems = st.builds(
    lambda dims, batch, ci, co, size, taps, stride, pad, dilation, groups: ConvProblem(
        batch=batch,
        in_channels=ci * groups,
        out_channels=co * groups,
        input_size=(size,) * dims,
        filter_size=(taps,) * dims,
        stride=(stride,) * dims,
        padding=((pad, pad),) * dims,
        dilation=(dilation,) * dims,
        groups=groups,
    ),
    st.integers(1, 3), st.integers(0, 300), st.integers(1, 600), st.integers(1, 600),
    st.integers(1, 200), st.integers(1, 7), st.integers(1, 3), st.integers(0, 3),
    st.integers(1, 2), st.sampled_from([1, 2, 32]),
)  # fmt: skip


@settings(deadline=None)
@given(st.sampled_from(DIRECTIONS), problems, st.integers(1, 200), st.integers(0, 100))
def test_more_images_never_mean_a_smaller_extent(direction, case, num_sms, more):
    larger = replace(case, batch=case.batch + more)
    assert case_of(direction, case).extent(num_sms) <= case_of(direction, larger).extent(num_sms)


@settings(deadline=None)
@given(st.sampled_from(DIRECTIONS), problems, problems)
def test_keys_differ_where_what_they_stand_for_does(direction, a, b):
    def stands_for(p):
        sides = any(side for pair in p.padding for side in pair)
        return (
            p.in_channels, p.out_channels, p.filter_size, p.stride, p.dilation, p.groups, sides,
            case_of(direction, p).extent(132),
        )  # fmt: skip

    keys = [case_of(direction, p).key(132) for p in (a, b)]
    assert (keys[0] == keys[1]) == (stands_for(a) == stands_for(b))


def test_a_dynamic_batch_has_few_keys():
    keys = {case_of("fprop", problem(batch=n)).key(132) for n in range(1, 1025)}
    assert len(keys) < 45
    # Sizes that take as many waves share one.
    one = case_of("fprop", problem(batch=16, input_size=(14, 14))).key(132)
    assert one == case_of("fprop", problem(batch=4)).key(132)


def test_what_a_key_says():
    assert case_of("fprop", problem()).key(132) == ("fprop float16 64->128 k3x3 padded waves 0.375")
    case = case_of("wgrad", problem(stride=(2, 2), groups=2))
    case = replace(case, dtype=torch.bfloat16, out_dtype=torch.float32)
    assert case.key(132) == "wgrad bfloat16 64->128 k3x3 s2x2 padded g2 to-float32 steps 28"


def test_epilogues_that_cost_no_memory_share_a_choice():
    def key(**spec):
        case = Case(
            direction="fprop", problem=problem(), dtype=torch.float16, epilogue=EpilogueSpec(**spec)
        )
        return case.key(132)

    plain = key()
    assert key(bias=True, scale=True, activation="gelu", out_scale=True) == plain
    assert key(out_dtype=torch.float16) == plain
    different = [key(residual=True), key(amax=True), key(out_dtype=torch.float32)]
    assert len({plain, *different}) == 4
    eight = Case(direction="fprop", problem=problem(), dtype=torch.int8)
    assert "to-int32" in eight.key(132)


# ---- configurations as JSON --------------------------------------------------------------------


def every_config():
    yield from gemm_config.CONFIGS
    yield from gluon_config.CONFIGS
    yield PackedConfig(gemm_config.CONFIGS[0])
    yield PackedConfig(wgrad.WgradChoice(config=wgrad.CONFIGS[0]))
    yield AsFpropConfig(gluon_config.CONFIGS[0])
    yield PatchConfig(gemm_config.CONFIGS[0])
    yield DirectConfig(block_m=64, block_n=32)
    yield GatherConfig(block_m=64, block_n=32, block_k=32)
    yield Col2ImConfig(block_m=64, rows=20)
    for config in wgrad.CONFIGS:
        yield wgrad.WgradChoice(config=config, part_rounds=3)


def test_configurations_survive_json():
    for config in every_config():
        text = json.dumps(encode(config))
        assert decode(kind_of(config), json.loads(text)) == config


def test_every_kind_has_one_class_and_every_class_one_kind():
    types = {family.kind: family.config_type for family in FAMILIES}
    assert len(set(types.values())) == len(types)
    for family in FAMILIES:
        assert types[family.kind] is family.config_type
        assert [each for each in families_of(family.direction) if each.kind == family.kind] == [
            family
        ]
        assert set(family.supersedes) <= {each.kind for each in families_of(family.direction)}
    # Names stand in users' files.
    assert set(types) == {
        "gemm", "gluon", "packed", "swapped", "gather", "col2im", "direct", "depthwise",
        "depthwise_wgrad", "wgrad", "gluon_wgrad", "patches", "as_fprop", "merged",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("none", {}, "kind 'none': expected one of gluon, gemm"),
        ("gemm", {"block_m": "128"}, "gemm.block_m: expected"),
        ("gemm", {"block_m": True}, "gemm.block_m: expected"),
        ("gemm", {"block_m": -1}, "out of range"),
        ("gemm", {"block_m": 1 << 40}, "out of range"),
        ("gemm", {"color": 1}, "unknown field 'color'"),
        ("gemm", {"num_stages": None}, "num_stages"),
        ("wgrad", {"config": 3}, "wgrad.config"),
        ("packed", {"config": {"block_m": 3}}, "packed.config: expected a configuration and its"),
        ("packed", {"config": {"kind": "none"}}, "kind 'none'"),
    ],
)
def test_what_makes_no_configuration(kind, change, message):
    config = gemm_config.CONFIGS[0]
    fields = encode(config) if kind == "gemm" else {}
    with pytest.raises(KindError, match=message):
        decode(kind, {**fields, **change})


def test_a_missing_field_is_named():
    fields = encode(gemm_config.CONFIGS[0])
    del fields["block_n"]
    with pytest.raises(KindError, match="block_n"):
        decode("gemm", fields)
    with pytest.raises(KindError, match="has no kind"):
        kind_of(problem())


# ---- files -------------------------------------------------------------------------------------


def entry(us: float = 10.0, measured: str = "2020-11-20T00:00:00Z", **changes) -> dict:
    config = gemm_config.CONFIGS[0]
    made = Entry(kind="gemm", config=encode(config), us=us, measured=measured, triton="3.9.0")
    return {**made.raw(), **changes}


def test_an_entry_without_a_time_is_none():
    with pytest.raises(TableError, match=r"entry\.us: 0 is out of range"):
        Entry.of(entry(us=0.0))


def test_a_table_survives_its_file(tmp_path):
    path = tmp_path / "deep" / file_name(GPU)
    assert read_table(path) is None
    table = Table(GPU, {"b 2": entry(), 'a "quoted"\n': entry(3.5)})
    write_table(path, table)
    assert read_table(path, GPU) == table
    # A line per entry, sorted, so that files can be compared by eye.
    text = path.read_text("utf-8")
    assert len(text.splitlines()) == 9
    assert json.loads(text)["schema"] == SCHEMA
    write_table(path, Table(GPU))
    assert read_table(path) == Table(GPU)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


raw_entries = st.one_of(
    st.builds(
        entry,
        st.floats(0.1, 1e6),
        st.dates().map(lambda day: f"{day.isoformat()}T00:00:00Z"),
    ),
    st.just({"kind": "of a later version"}),
    st.integers(),
)
tables = st.dictionaries(st.text(max_size=8), raw_entries, max_size=6)


@given(tables, tables, tables)
def test_merging_has_no_order(a, b, c):
    assert merged(a, b) == merged(b, a)
    assert merged(merged(a, b), c) == merged(a, merged(b, c))
    assert merged(a, a) == a
    assert set(merged(a, b)) == {*a, *b}


def test_the_newer_entry_stays():
    old, new = entry(5.0), entry(7.0, "2021-01-01T00:00:00Z")
    assert merged({"k": old}, {"k": new}) == {"k": new} == merged({"k": new}, {"k": old})
    broken = {"kind": 3}
    assert merged({"k": broken}, {"k": old}) == {"k": old}


@settings(deadline=None, max_examples=30)
@given(entries=tables)
def test_whatever_an_entry_holds_is_kept(entries, tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "t.json"
    write_table(path, Table(GPU, entries))
    update_table(path, Table(GPU, {"mine": entry()}))
    assert read_table(path, GPU).entries == merged(entries, {"mine": entry()})


_ENTRIES = f'{{"format": "triton-ext tuning", "schema": 1, "gpu": "{GPU}", "entries": '.encode()
BROKEN = {
    "empty": b"",
    "half": b'{"format": "triton-ext tuning", "schema": 1, "gpu"',
    "binary": b"\xff\xfe\x00",
    "another format": b'{"entries": {}}',
    "a list": b"[]",
    "another schema": b'{"format": "triton-ext tuning", "schema": 99, "gpu": "x", "entries": {}}',
    "no entries": b'{"format": "triton-ext tuning", "schema": 1, "gpu": "x"}',
    "too deep": b"[" * 100_000,
    "a bool for the schema": b'{"format": "triton-ext tuning", "schema": true, "gpu": "x"}',
    "a float for the schema": b'{"format": "triton-ext tuning", "schema": 1.0, "gpu": "x"}',
    "a number that is infinite": _ENTRIES + b'{"k": {"us": 1e400}}}',
    "infinity": _ENTRIES + b'{"k": {"us": Infinity}}}',
    "no number": _ENTRIES + b'{"k": {"us": NaN}}}',
    "a key twice": _ENTRIES + b'{"k": {"us": 1}, "k": {"us": 2}}}',
    "a field twice": b'{"schema": 2, ' + _ENTRIES[1:] + b"{}}",
    "many digits": _ENTRIES + b'{"k": ' + b"9" * 5000 + b"}}",
    "deep entries": _ENTRIES + b'{"k": ' + b"[" * 900 + b"]" * 900 + b"}}",
    "no name": b'{"format": "triton-ext tuning", "schema": 1, "gpu": "", "entries": {}}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_what_is_no_table_is_set_aside_and_not_lost(content, tmp_path):
    path = tmp_path / file_name(GPU)
    path.write_bytes(content)
    with pytest.raises(TableError, match=path.name):
        read_table(path, GPU)
    with pytest.warns(TuningWarning, match="it is now"):
        update_table(path, Table(GPU, {"k": entry()}))
    assert read_table(path, GPU).entries == {"k": entry()}
    (aside,) = tmp_path.glob("*.aside-*")
    assert aside.read_bytes() == content


def test_a_table_of_another_schema_is_refused_with_the_command_that_makes_new_ones(tmp_path):
    path = tmp_path / file_name(GPU)
    path.write_bytes(BROKEN["another schema"])
    with pytest.raises(TableError) as raised:
        read_table(path, GPU)
    assert str(raised.value) == (
        f"{path}: has schema 99, this version reads 1: measure again with triton-ext tune, which "
        "writes a new table"
    )


def test_a_folder_and_a_file_too_large_are_no_tables(tmp_path):
    with pytest.raises(TableError, match=rf"Is a directory: '{tmp_path}'"):
        read_table(tmp_path)
    path = tmp_path / "t.json"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TableError, match="has more than 268435456 bytes"):
        read_table(path)
    with pytest.raises(OSError, match="has more than 268435456 bytes"):
        update_table(path, Table(GPU, {"k": entry()}))
    assert path.stat().st_size == 1 << 40


_LONG = 100_000


@pytest.mark.parametrize(
    "text", ["A" * _LONG, "\x1b[31mred\n" * 100, "\u202e", "\ud800", [1] * _LONG]
)
@pytest.mark.parametrize("name", ["schema", "gpu", "format"])
def test_messages_cut_and_escape_what_a_file_says(text, name, tmp_path, capsys):
    path = tmp_path / "t.json"
    document = {"format": "triton-ext tuning", "schema": 1, "gpu": GPU, "entries": {}, name: text}
    path.write_text(json.dumps(document))
    with pytest.raises(TableError) as raised:
        read_table(path, GPU)
    assert len(str(raised.value)) < len(str(path)) + 250
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("text", ["A" * _LONG, "\x1b[31mred\n" * 100, [1] * _LONG])
def test_messages_cut_and_escape_what_an_entry_says(text):
    for broken in (text, *(entry(**{name: text}) for name in ("us", "config"))):
        with pytest.raises(TableError) as raised:
            Entry.of(broken)
        assert len(str(raised.value)) < 250
        assert str(raised.value).isprintable()
    packed = {"config": {"kind": text, "config": {}}}
    fields = {text: 1} if isinstance(text, str) else {"block_m": text}
    odd = [("gemm", fields), ("gemm", {"num_stages": text}), ("packed", packed)]
    for kind, config in [*odd, (text, {})] if isinstance(text, str) else odd:
        with pytest.raises(KindError) as raised:
            decode(kind, config)
        assert len(str(raised.value)) < 250
        assert str(raised.value).isprintable()


@pytest.mark.parametrize("us", [math.inf, math.nan, -1.0, -1, True, 10**400, 1e300])
@pytest.mark.parametrize("name", ["us", "model_us"])
def test_times_are_finite_numbers_from_zero(us, name):
    with pytest.raises(TableError, match=rf"entry\.{name}"):
        Entry.of(entry(**{name: us}))


WRITER = """
import pathlib, sys
from triton_ext.ops.core.tables import Entry, Table
from triton_ext.ops.tuning.store import update_table
path, name, count = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for index in range(count):
    made = Entry(kind="gemm", config={}, us=1.0, measured=f"{index:04}")
    entries = {f"{name} {index}": made.raw(), "both": made.raw()}
    update_table(path, Table("NVIDIA Test GPU", entries))
"""


def test_writers_do_not_undo_each_others_work(tmp_path):
    path, count = tmp_path / "t.json", 12
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, str(count)])
        for name in "abc"
    ]
    while any(writer.poll() is None for writer in writers):
        # A reader sees a whole table at every moment.
        read_table(path, GPU)
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    entries = read_table(path, GPU).entries
    assert set(entries) == {"both", *(f"{n} {i}" for n in "abc" for i in range(count))}
    assert entries["both"]["measured"] == f"{count - 1:04}"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_writer_that_waited_for_a_removed_lock_waits_for_the_next_one(tmp_path):
    path, name = tmp_path / "t.json", tmp_path / "t.json.lock"
    with open(name, "w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        writer = threading.Thread(
            target=update_table, args=(path, Table(GPU, {"k": entry()})), daemon=True
        )
        writer.start()
        writer.join(0.2)
        name.unlink()
        second = open(name, "w")  # noqa: SIM115 (held beyond the first one)
        fcntl.flock(second, fcntl.LOCK_EX)
    writer.join(0.2)
    assert writer.is_alive()
    assert not path.exists()
    second.close()
    writer.join(60)
    assert read_table(path, GPU).entries == {"k": entry()}
    assert not name.exists()


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    write_table(path, Table(GPU, {"k": entry()}))
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        update_table(path, Table(GPU, {"l": entry()}))
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.json"]


@pytest.mark.parametrize("measured", ["~~~", "9999-12-31T23:59:59Z", "2026", ""])
def test_a_date_that_is_none_or_to_come_is_outvoted(measured):
    wrong, right = {"k": entry(measured=measured)}, {"k": entry(measured="2020-01-01T00:00:00Z")}
    assert merged(wrong, right) == right == merged(right, wrong)
    assert merged(wrong, {}) == wrong


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_new_tables_honour_the_umask_and_old_ones_keep_their_mode(tmp_path, mask):
    path = tmp_path / "t.json"
    before = os.umask(mask)
    try:
        update_table(path, Table(GPU, {"k": entry()}))
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask
        path.chmod(0o640)
        update_table(path, Table(GPU, {"l": entry()}))
        assert path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


def test_a_link_to_a_table_stays(tmp_path):
    table, link = tmp_path / "shared" / "t.json", tmp_path / "link.json"
    table.parent.mkdir()
    link.symlink_to(table)
    update_table(table, Table(GPU, {}))
    for key in ("k", "l"):
        update_table(link, Table(GPU, {key: entry()}))
    assert link.is_symlink()
    assert set(read_table(table, GPU).entries) == {"k", "l"}
    assert list(tmp_path.glob("**/.*")) == list(tmp_path.glob("**/*.lock")) == []


@pytest.mark.parametrize("content", [None, "precious", '{"schema": 1, "gpu": "another"}'])
def test_a_link_to_what_is_no_table_is_not_followed(tmp_path, content):
    target, link = tmp_path / "elsewhere" / "settings.ini", tmp_path / "t.json"
    if content is not None:
        target.parent.mkdir()
        target.write_text(content)
    link.symlink_to(target)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match=r"it is a link to .*settings\.ini, expected a table for GPU"):
        update_table(link, Table("GPU", {}))
    assert sorted(tmp_path.rglob("*")) == before
    assert content is None or target.read_text() == content


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "t.json.lock").symlink_to(target)
    with pytest.raises(OSError, match="is a link, not a lock"):
        update_table(tmp_path / "t.json", Table(GPU, {"k": entry()}))
    assert target.read_text() == "precious"


@pytest.mark.parametrize("name", ["t.json.lock", "t.json"])
def test_a_pipe_is_no_lock_and_no_table(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match="is no regular file"):
        update_table(tmp_path / "t.json", Table(GPU, {"k": entry()}))
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_waiting_for_a_lock_ends_with_a_message(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_LOCK_SECONDS", 0.1)
    with open(tmp_path / "t.json.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"another process has held the lock for 0\.1 s"):
            update_table(tmp_path / "t.json", Table(GPU, {"k": entry()}))


def test_a_lock_that_may_only_be_read_is_waited_for(tmp_path, monkeypatch):
    name = tmp_path / "t.json.lock"
    real = os.open

    def refused(path, flags, *mode):
        if path == name and flags & os.O_RDWR and name.exists():
            raise PermissionError(errno.EACCES, "of another user")
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refused)
    name.touch()
    update_table(tmp_path / "t.json", Table(GPU, {"k": entry()}))
    assert read_table(tmp_path / "t.json", GPU).entries == {"k": entry()}


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_table_that_cannot_be_read_now_stays(tmp_path, monkeypatch, number):
    path = tmp_path / "t.json"
    update_table(path, Table(GPU, {"k": entry()}))
    real = os.open

    def failing(name, flags, *mode):
        if name == path and flags & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(number, os.strerror(number))
        return real(name, flags, *mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        with pytest.raises(OSError, match=os.strerror(number)):
            update_table(path, Table(GPU, {"l": entry()}))
    assert read_table(path, GPU).entries == {"k": entry()}
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_a_killed_writers_file_is_used_up_by_the_next(tmp_path):
    (tmp_path / ".t.json.tmp").write_text("half")
    update_table(tmp_path / "t.json", Table(GPU, {"k": entry()}))
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


# ---- look-up -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_EXT_TUNING", raising=False)
    monkeypatch.setattr(lookups, "shipped_path", lambda gpu: tmp_path / f"shipped {gpu}.json")
    lookups.lookup.forget(added=True)
    yield tmp_path
    lookups.lookup.forget(added=True)


CASE = Case(direction="fprop", problem=problem(), dtype=torch.float16)
KEY = CASE.key(MACHINE.num_sms)


def table_of(config, **changes):
    return Table(GPU, {KEY: entry(kind=kind_of(config), config=encode(config), **changes)})


def test_the_users_table_goes_before_ours_and_ours_before_the_model(folder):
    ours, mine, added = gemm_config.CONFIGS[:3]
    assert lookups.find(CASE, MACHINE) is None
    write_table(folder / f"shipped {GPU}.json", table_of(ours, measured="2099-01-01T00:00:00Z"))
    # Files are read once ...
    assert lookups.find(CASE, MACHINE) is None
    # ... until that is to be forgotten.
    lookups.lookup.forget()
    assert lookups.find(CASE, MACHINE) == ours
    write_table(folder / file_name(GPU), table_of(mine))
    lookups.lookup.forget()
    assert lookups.find(CASE, MACHINE) == mine
    lookups.lookup.add(GPU, table_of(added, measured="2021-01-01T00:00:00Z").entries, "here")
    assert lookups.find(CASE, MACHINE) == added
    assert lookups.find(CASE, replace(MACHINE, name="NVIDIA Other")) is None
    assert lookups.find(CASE, replace(MACHINE, name="")) is None


def test_float16_and_bfloat16_take_each_others_choices(folder):
    theirs, own = gemm_config.CONFIGS[:2]
    other = replace(CASE, dtype=torch.bfloat16)
    write_table(folder / f"shipped {GPU}.json", table_of(theirs))
    assert lookups.find(other, MACHINE) == theirs
    # What was measured in the type itself goes first, whosever it is.
    entries = {other.key(132): entry(kind="gemm", config=encode(own))}
    lookups.lookup.add(GPU, entries, "here")
    assert lookups.find(other, MACHINE) == own
    assert lookups.find(CASE, MACHINE) == theirs
    for dtype in (torch.float32, torch.int8, torch.float8_e4m3fn):
        assert lookups.find(replace(CASE, dtype=dtype), MACHINE) is None


def test_the_twins_of_a_case_have_types_of_as_many_bytes():
    half, brain, fp8, other = (
        torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    )  # fmt: skip
    wgrad = replace(CASE, direction="wgrad")

    def to(dtype):
        return EpilogueSpec(residual=True, out_dtype=dtype)

    for case, twins in (
        (CASE, {(brain, None, None)}),
        (replace(wgrad, out_dtype=torch.float32), {(brain, torch.float32, None)}),
        (
            replace(wgrad, out_dtype=half),
            {(half, brain, None), (brain, half, None), (brain, brain, None)},
        ),
        (replace(CASE, epilogue=to(torch.float32)), {(brain, None, torch.float32)}),
        (replace(CASE, dtype=fp8), {(other, None, None)}),
        (
            replace(CASE, dtype=fp8, epilogue=to(brain)),
            {(fp8, None, half), (other, None, half), (other, None, brain)},
        ),
        (replace(CASE, dtype=torch.float32), set()),
        (replace(CASE, dtype=torch.int8), set()),
    ):
        found = [(twin.dtype, twin.out_dtype, twin.epilogue.out_dtype) for twin in case.twins]
        assert len(found) == len(twins)
        assert set(found) == twins
        assert all(case in twin.twins for twin in case.twins)
        assert all(twin.epilogue.residual == case.epilogue.residual for twin in case.twins)


def test_tables_can_be_left_out(folder, monkeypatch):
    write_table(folder / file_name(GPU), table_of(gemm_config.CONFIGS[0]))
    monkeypatch.setenv("TRITON_EXT_TUNING", "0")
    assert lookups.find(CASE, MACHINE) is None


def test_a_broken_table_is_reported_and_not_used(folder):
    (folder / file_name(GPU)).write_text("{", encoding="utf-8")
    write_table(folder / f"shipped {GPU}.json", table_of(gemm_config.CONFIGS[0]))
    with pytest.warns(TuningWarning, match="is not JSON.*it is not used"):
        assert lookups.find(CASE, MACHINE) == gemm_config.CONFIGS[0]


def test_the_table_of_another_gpu_is_reported_and_not_used(folder):
    other = table_of(gemm_config.CONFIGS[0])
    other.gpu = "NVIDIA Other"
    write_table(folder / file_name(GPU), other)
    with pytest.warns(TuningWarning, match="is for NVIDIA Other, this is NVIDIA Test GPU"):
        assert lookups.find(CASE, MACHINE) is None


@pytest.mark.parametrize("raw", [3, {"kind": "gemm"}, entry(kind="later"), entry(config={"a": 1})])
def test_a_broken_entry_is_reported_and_not_used(folder, raw):
    write_table(folder / file_name(GPU), Table(GPU, {KEY: raw}))
    with pytest.warns(TuningWarning, match="is not used"):
        assert lookups.find(CASE, MACHINE) is None


IMPOSSIBLE = {
    "stages": (
        gemm_config.CONFIGS[0], {"num_stages": 60},
        r"gemm: its tiles and stages take \d+ bytes of shared memory, a CTA has 232448: expected "
        "fewer stages or smaller tiles",
    ),
    "many stages": (gemm_config.CONFIGS[0], {"num_stages": 200}, "num_stages is 200: expected 1"),
    "rows": (gemm_config.CONFIGS[0], {"block_m": 100}, "block_m is 100: expected a power of two"),
    "warps": (gemm_config.CONFIGS[0], {"num_warps": 3}, "num_warps is 3: expected a power of two"),
    # The kernels know halves only.
    "parts": (gemm_config.CONFIGS[0], {"store_parts": 4}, "store_parts is 4: expected 1 to 2"),
    "type": (gemm_config.CONFIGS[0], {"block_m": "128"}, "block_m: expected .*int.* found '128'"),
    "gluon": (gluon_config.CONFIGS[0], {"rows": 96}, "gluon: rows is 96: expected a power of two"),
    "store": (gluon_config.CONFIGS[0], {"store_n": 2}, "store_n is 2: expected a power"),
    "filter": (
        gluon_config.CONFIGS[0], {"filter_steps": 2}, "filter_steps is 2, the convolution has 9",
    ),
    "direct": (
        DirectConfig(block_m=64, block_n=64), {"block_n": 65}, "block_n is 65: expected a power",
    ),
    "gather": (
        GatherConfig(block_m=64, block_n=64, block_k=32), {"block_k": 8}, "channels: from 16 bytes",
    ),
    "col2im": (Col2ImConfig(block_m=64, rows=9), {}, "columns, taps of a row and output channels"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "change", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_numbers_are_not_used_and_told_once(folder, config, change, message):
    raw = entry(kind=kind_of(config), config={**encode(config), **change})
    write_table(folder / file_name(GPU), Table(GPU, {KEY: raw}))
    where = re.escape(f"{folder / file_name(GPU)}: entry '{KEY}' is not used: ")
    with pytest.warns(TuningWarning, match=f"{where}.*{message}.*; the model chooses, until"):
        assert lookups.find(CASE, MACHINE) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lookups.find(CASE, MACHINE) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": 100}, r"\d+ B of shared memory, a CTA has"),
        ({"pixels": 100}, "pixels is 100: expected a power of two from 16 to 128"),
        ({"consumers": 7}, "consumers is 7: expected 1 to 3"),
        ({"share": "tile"}, "consumers that share a tile leave adding to the second kernel"),
    ],
)
def test_impossible_tiles_of_wgrad_are_told(folder, change, message):
    case = replace(CASE, direction="wgrad")
    choice = WgradTileChoice(config=WgradTileConfig(main_blocks=1, stages=4), add_in_place=True)
    assert not config_refusals(choice, case, MACHINE)
    raw = entry(kind="gluon_wgrad", config=encode(choice))
    raw["config"]["config"] |= change
    write_table(folder / file_name(GPU), Table(GPU, {case.key(132): raw}))
    where = re.escape(f"{folder / file_name(GPU)}: entry '{case.key(132)}' is not used: ")
    with pytest.warns(TuningWarning, match=f"{where}gluon_wgrad: .*{message}"):
        assert lookups.find(case, MACHINE) is None
    wide = replace(case, out_dtype=torch.float32)
    assert "out_dtype is torch.float32" in str(config_refusals(choice, wide, MACHINE)[0])


def test_bytes_of_elements_are_written_where_they_are_not_two():
    config = gluon_config.CONFIGS[0]
    written = encode(config)
    assert not {"element_bytes", "out_bytes", "rows_from_w"} & set(written)
    assert decode("gluon", written) == config
    narrow = replace(config, element_bytes=1, block_k=128)
    assert encode(narrow) == {**written, "element_bytes": 1, "block_k": 128}
    assert decode("gluon", encode(narrow)) == narrow
    asked = problem(in_channels=64, out_channels=64)
    case = replace(CASE, problem=asked, dtype=torch.float8_e4m3fn)
    half = replace(case, epilogue=EpilogueSpec(out_dtype=torch.float16))
    assert not config_refusals(narrow, half, MACHINE)
    (found,) = map(str, config_refusals(narrow, case, MACHINE))
    assert found == "out_bytes is 2, the convolution has 1"
    assert "dtype is" in str(config_refusals(narrow, replace(case, direction="dgrad"), MACHINE)[0])


def test_tiles_of_a_strided_gradient_keep_no_filter():
    narrow = replace(gluon_config.CONFIGS[0], stages=2, block_n_main=16, store_n=16)
    config = replace(narrow, filter_steps=18)
    case = replace(CASE, direction="dgrad")
    assert not config_refusals(config, case, MACHINE)
    strided = replace(case, problem=problem(stride=(2, 2)))
    found = [*map(str, config_refusals(config, strided, MACHINE))]
    assert found == ["filter_steps is 18, the convolution has 0"]
    assert "groups=2" in str(
        config_refusals(config, replace(case, problem=problem(groups=2)), MACHINE)[0]
    )


@pytest.mark.parametrize(
    "config",
    [
        DepthwiseConfig(qw=4, block_p=1024, block_c=1024),
        DepthwiseConfig(qw=32, block_p=32, block_c=64),
        DepthwiseWgradConfig(qw=1, lines=1, taps=3, block_p=1024, block_c=1024),
        DepthwiseWgradConfig(qw=32, lines=8, taps=12, block_p=4, block_c=64),
    ],
    ids=str,
)
def test_depthwise_programs_too_large_to_compile_are_not_used(config):
    direction = "wgrad" if isinstance(config, DepthwiseWgradConfig) else "fprop"
    one = problem(in_channels=64, out_channels=64, groups=64)
    asked = replace(CASE, direction=direction, problem=one)
    (found,) = map(str, config_refusals(config, asked, MACHINE))
    assert re.match(r"block_p \* block_c is \d+, \d+ elements of each thread", found)


def test_a_warning_names_the_file_that_was_used(folder):
    write_table(folder / f"shipped {GPU}.json", table_of(gemm_config.CONFIGS[0]))
    wrong = replace(gemm_config.CONFIGS[0], num_warps=5)
    lookups.lookup.add(GPU, table_of(wrong).entries, "/shared.json")
    with pytest.warns(TuningWarning, match=rf"^/shared\.json: entry '{KEY}' is not used: gemm"):
        lookups.find(CASE, MACHINE)
    lookups.lookup.forget(added=True)
    write_table(folder / f"shipped {GPU}.json", table_of(wrong))
    with pytest.warns(TuningWarning, match=re.escape(f"{folder / f'shipped {GPU}.json'}: entry")):
        lookups.find(CASE, MACHINE)


def test_a_depthwise_gradient_takes_whole_strides_only(folder):
    """A position begins at a pixel of dy, which its kernel takes for granted."""
    strided = problem(in_channels=64, out_channels=64, groups=64, stride=(2, 2))
    case = replace(CASE, direction="dgrad", problem=strided)
    raw = {**entry(), **DEPTHWISE, "config": {**DEPTHWISE["config"], "qw": 3}}
    write_table(folder / file_name(GPU), Table(GPU, {case.key(132): raw}))
    with pytest.warns(TuningWarning, match="qw is 3: expected a multiple of the stride, 2"):
        assert lookups.find(case, MACHINE) is None


def test_a_stride_that_im2col_does_not_take_needs_packed_rows(folder):
    case = replace(CASE, problem=problem(in_channels=3, stride=(16, 16), filter_size=(16, 16)))
    config = gemm_config.CONFIGS[0]
    raw = entry(kind="gemm", config=encode(config))
    write_table(folder / file_name(GPU), Table(GPU, {case.key(132): raw}))
    with pytest.warns(TuningWarning, match="im2col cannot read x tap by tap: expected a config"):
        assert lookups.find(case, MACHINE) is None
    packed = entry(10.0, "2021-01-01", kind="packed", config=encode(PackedConfig(config)))
    lookups.lookup.add(GPU, {case.key(132): packed}, "here")
    assert lookups.find(case, MACHINE) == PackedConfig(config)


def test_what_ships_is_of_the_suites_and_possible():
    cases = [
        Case(direction=direction, problem=layer.problem, dtype=torch.float16)
        for direction in DIRECTIONS
        for layer in select_layers("all", None)
    ]
    to_bfloat16 = EpilogueSpec(out_dtype=torch.bfloat16)
    cases += [
        Case(
            direction="fprop",
            problem=layer.problem,
            dtype=torch.float8_e4m3fn,
            epilogue=to_bfloat16,
        )
        for layer in select_layers("wide")
    ]
    by_key = {case.key(132): case for case in reversed(cases)}
    for key, raw in read_table(lookups.shipped_path("NVIDIA H200")).entries.items():
        read = Entry.of(raw)
        assert key in by_key
        assert not config_refusals(decode(read.kind, read.config), by_key[key], MACHINE), key


def test_what_the_models_choose_is_possible():
    cases = {
        "plain": problem(),
        "strided": problem(stride=(2, 2)),
        "grouped": problem(groups=4),
        "depthwise": problem(in_channels=64, out_channels=64, groups=64),
        "depthwise strided": problem(in_channels=64, out_channels=64, groups=64, stride=(3, 3)),
        "large depthwise": problem(in_channels=8, out_channels=8, groups=8, filter_size=(31, 31)),
        "few channels": problem(in_channels=3, filter_size=(7, 7)),
        "small groups": problem(groups=32),
        "patches": problem(in_channels=3, stride=(16, 16), filter_size=(16, 16)),
    }
    for name, one in cases.items():
        for direction in DIRECTIONS:
            for dtype in (torch.float16, torch.float32):
                case = Case(direction=direction, problem=one, dtype=dtype)
                for config in candidates(one, direction, dtype, MACHINE, count=100):
                    assert not config_refusals(config, case, MACHINE), (name, direction, config)


def test_without_a_home_folder_there_is_no_users_table(folder, monkeypatch):
    write_table(folder / f"shipped {GPU}.json", table_of(gemm_config.CONFIGS[0]))
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", "~nobody-is-called-so/x")
    with pytest.warns(TuningWarning, match="no such home folder; set TRITON_EXT_TUNING_DIR"):
        assert lookups.find(CASE, MACHINE) == gemm_config.CONFIGS[0]


def test_a_table_for_another_gpu_of_the_same_file_name_is_left_as_it_is(tmp_path):
    path, other = tmp_path / file_name(GPU), GPU.replace(" ", "-")
    assert file_name(other) == file_name(GPU)
    update_table(path, Table(GPU, {"k": entry()}))
    with pytest.raises(OSError, match=f"is for {GPU}, this is {other}"):
        update_table(path, Table(other, {"j": entry()}))
    assert read_table(path, GPU).entries == {"k": entry()}


def test_a_name_twice_is_found_behind_many(tmp_path):
    # Names that are counted one by one take hours.
    names = "".join(f'"{number}": 0, ' for number in range(200_000))
    path = tmp_path / "a.json"
    path.write_text(f'{{{names}"199999": 1}}')
    with pytest.raises(TableError, match="has '199999' twice"):
        read_table(path)


def test_a_folder_is_not_set_aside(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder, not a file"):
        update_table(tmp_path, Table(GPU, {}))
    assert tmp_path.is_dir()
    assert not list(tmp_path.parent.glob("*.aside-*"))


DEPTHWISE = {"kind": "depthwise", "config": {"qw": 4, "block_p": 16, "block_c": 64}}
WGRAD = {"block_co": 64, "block_ci": 64, "num_stages": 4, "num_warps": 4}
WGRAD_CHOICE = {"kind": "wgrad", "config": {"config": WGRAD}}


@pytest.mark.parametrize(
    ("direction", "choice", "message"),
    [
        ("fprop", DEPTHWISE, "depthwise: no depthwise convolution: expected groups"),
        ("dgrad", DEPTHWISE, "depthwise: no depthwise convolution: expected groups"),
        ("wgrad", DEPTHWISE, "depthwise: no kernel of wgrad, which has wgrad, gluon_wgrad"),
        ("fprop", WGRAD_CHOICE, "wgrad: no kernel of fprop"),
        ("dgrad", WGRAD_CHOICE, "wgrad: no kernel of dgrad"),
        ("wgrad", {}, "gemm: no kernel of wgrad"),
        (
            "fprop",
            {"kind": "packed", "config": {"config": WGRAD_CHOICE}},
            "packed: WgradChoice does not",
        ),
        (
            "dgrad",
            {"kind": "packed", "config": {"config": WGRAD_CHOICE}},
            "packed: no kernel of dgrad",
        ),
    ],
)
def test_a_choice_of_another_kernel_is_reported_and_not_used(folder, direction, choice, message):
    case = replace(CASE, direction=direction)
    write_table(folder / file_name(GPU), Table(GPU, {case.key(132): {**entry(), **choice}}))
    with pytest.warns(TuningWarning, match=f"is not used: {message}"):
        assert lookups.find(case, MACHINE) is None


def test_a_depthwise_choice_is_used_where_it_belongs(folder):
    case = replace(CASE, problem=problem(in_channels=64, out_channels=64, groups=64))
    write_table(folder / file_name(GPU), Table(GPU, {case.key(132): {**entry(), **DEPTHWISE}}))
    assert encode(lookups.find(case, MACHINE))["qw"] == 4


@pytest.mark.parametrize("name", ["block_m", "block_n", "num_warps", "store_parts"])
def test_zeros_are_out_of_range(name):
    with pytest.raises(KindError, match=f"gemm.{name}: 0 is out of range"):
        decode("gemm", {**encode(gemm_config.CONFIGS[0]), name: 0})


def test_where_tables_are(monkeypatch):
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", "/a")
    assert lookups.user_path("NVIDIA H200") == pathlib.Path(f"/a/nvidia_h200.v{SCHEMA}.json")
    monkeypatch.delenv("TRITON_EXT_TUNING_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/b")
    assert lookups.user_folder() == pathlib.Path("/b/triton-ext/tuning")
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert lookups.user_folder() == pathlib.Path.home() / ".local/share/triton-ext/tuning"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "")
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert lookups.user_folder() == pathlib.Path(home, ".local/share/triton-ext/tuning")
    monkeypatch.setenv("TRITON_EXT_TUNING_DIR", "~/tables")
    assert lookups.user_folder() == pathlib.Path(home, "tables")
    monkeypatch.delenv("TRITON_EXT_TUNING_DIR")
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(TableError, match="there is no home folder"):
        lookups.user_folder()
    monkeypatch.delenv("HOME")
    assert lookups.user_folder() == pathlib.Path.home() / ".local/share/triton-ext/tuning"
    monkeypatch.undo()
    assert lookups.shipped_path("NVIDIA H200").name == "nvidia_h200.json"
    assert file_name("???") == f"unknown.v{SCHEMA}.json"


def test_observers_are_told_what_is_asked_for(folder, monkeypatch):
    write_table(folder / file_name(GPU), table_of(gemm_config.CONFIGS[0]))
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(lookups.lookup, "observers", [lambda *told: seen.append(told)])
        lookups.find(CASE, MACHINE)
        lookups.find(replace(CASE, dtype=torch.float32), MACHINE)
    lookups.find(CASE, MACHINE)
    assert [(case.dtype, known) for case, _, known in seen] == [
        (torch.float16, True),
        (torch.float32, False),
    ]
