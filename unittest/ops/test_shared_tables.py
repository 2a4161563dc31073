"""Tables in a folder that two users share: locks, private files, sticky bits."""

from __future__ import annotations

import os
import pathlib
import tempfile
import warnings

import pytest

pytest.importorskip("torch")

from triton_ext.ops.core.tables import Table, read_table
from triton_ext.ops.tuning import store
from triton_ext.ops.tuning.store import update_table

GPU = "NVIDIA Test GPU"
ENTRY = {"kind": "gemm", "config": {}, "us": 1.0, "measured": "2020-11-20T00:00:00Z"}

_USERS, _GROUP = (54321, 54322), 54323
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


def as_user(number: int, run, mask: int = 0o022) -> str:
    """Runs something as one of two users of a group; returns its error, or nothing."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.setgroups([_GROUP])
            os.setgid(_USERS[number])
            os.setuid(_USERS[number])
            os.umask(mask)
            warnings.simplefilter("ignore")
            run()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        found = file.read().decode()
    os.waitpid(process, 0)
    return found


@pytest.fixture
def shared():
    """A folder of a group, with the bit that gives new files the group."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        path = pathlib.Path(folder) / "tables"
        path.mkdir()
        os.chown(path, _USERS[0], _GROUP)
        os.chmod(path, 0o2775)
        yield path


def updates(path: pathlib.Path, key: str):
    return lambda: update_table(path, Table(GPU, {key: ENTRY}))


@needs_root
@pytest.mark.parametrize("mask", [0o002, 0o022, 0o027, 0o077])
@pytest.mark.parametrize("folder_mode", [0o2775, 0o775, 0o777, 0o2770])
def test_a_lock_is_as_open_as_its_folder(shared, mask, folder_mode):
    os.chmod(shared, folder_mode)
    path, lock = shared / "t.json", shared / "t.json.lock"

    def stopped():
        with store._locked(path):
            os._exit(0)  # as a kill

    as_user(0, stopped, mask)
    assert lock.stat().st_mode & 0o777 == (0o666 if folder_mode == 0o777 else 0o660)
    assert lock.stat().st_gid == _GROUP
    assert as_user(1, updates(path, "k"), mask) == ""
    assert read_table(path, GPU).entries == {"k": ENTRY}
    assert [each.name for each in shared.iterdir()] == ["t.json"]


@needs_root
def test_a_private_table_in_a_shared_folder_is_an_error_that_says_so(shared):
    path = shared / "t.json"
    assert as_user(0, updates(path, "k"), 0o077) == ""
    found = as_user(1, updates(path, "l"))
    assert found.startswith("PermissionError")
    assert f"it is -rw------- of user {_USERS[0]}, and may not be read" in found
    assert read_table(path, GPU).entries == {"k": ENTRY}
    assert [each.name for each in shared.iterdir()] == ["t.json"]


@needs_root
def test_a_lock_that_is_a_hard_link_gives_no_access_to_its_file(shared):
    private, path = shared.parent / "private", shared / "t.json"
    private.write_text("secret")
    private.chmod(0o600)
    os.link(private, shared / "t.json.lock")
    update_table(path, Table(GPU, {"a": ENTRY}))
    assert private.stat().st_mode & 0o777 == 0o600
    assert private.stat().st_gid == os.getegid()
    assert private.read_text() == "secret"
    table = read_table(path, GPU)
    assert table is not None
    assert set(table.entries) == {"a"}


def test_a_lock_that_is_closed_to_others_ends_in_a_message(shared, monkeypatch):
    monkeypatch.setattr(store, "_LOCK_SECONDS", 0.1)
    lock = shared / "t.json.lock"
    lock.touch()
    lock.chmod(0o600)
    found = as_user(1, updates(shared / "t.json", "k"))
    assert "the lock t.json.lock cannot be opened: it is -rw------- of user root" in found


@needs_root
def test_a_sticky_folder_loses_nothing(shared):
    os.chown(shared, 0, _GROUP)
    os.chmod(shared, 0o3775)
    path = shared / "t.json"
    assert as_user(0, updates(path, "k")) == ""
    found = as_user(1, updates(path, "l"))
    assert found.startswith("PermissionError")
    assert f"it is -rw-r--r-- of user {_USERS[0]}, and {shared} lets owners alone" in found
    assert as_user(0, updates(path, "m")) == ""
    assert set(read_table(path, GPU).entries) == {"k", "m"}
    # A lock that another user left is used, and stays.
    lock = shared / "t.json.lock"
    lock.touch()
    os.chown(lock, _USERS[1], _GROUP)
    lock.chmod(0o660)
    assert as_user(0, updates(path, "n")) == ""
    assert set(read_table(path, GPU).entries) == {"k", "m", "n"}
    assert lock.exists()
    # What another user left half done is named.
    half = shared / ".t.json.tmp"
    half.touch()
    os.chown(half, _USERS[1], _GROUP)
    assert f"of user {_USERS[1]}; its owner has to remove it" in as_user(0, updates(path, "o"))
