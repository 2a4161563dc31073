"""Child processes end with their parent, import nothing from the current folder, leave no files."""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from triton_ext.host import children
from triton_ext.host.process import Call, HostProcess, find_library

BUSY = 'import re; print(1, flush=True); re.match("(a+)+b", "a" * 60)'
PARENT = f"""
import subprocess
from triton_ext.host.children import command
child = subprocess.Popen(command("-c", {BUSY!r}), stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def is_running(process: int) -> bool:
    """Returns whether a process is there that is more than an entry its parent has not read yet."""
    try:
        state = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def ends(process: int) -> bool:
    end = time.monotonic() + 10
    while is_running(process):
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_busy_child_ends_with_its_parent(number):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    with parent:
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.send_signal(number)
    assert ends(child)


def test_a_child_whose_parent_has_ended_already_does_nothing():
    command = children.command("-c", "print(1)")
    command[command.index(str(os.getpid()))] = "1"  # not the one that starts it
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_child_imports_nothing_from_the_current_folder(tmp_path):
    for name in ("json", "base64", "ctypes", "runpy", "triton_ext", "strings"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine')")
    code = "import sys, json, base64, triton_ext.strings; print(sys.argv, '' in sys.path)"
    done = subprocess.run(
        children.command("-c", code, "a"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("['-c', 'a'] False\n", "")


def test_a_child_imports_the_package_of_its_parent(tmp_path):
    (tmp_path / "triton_ext").mkdir()
    (tmp_path / "triton_ext" / "__init__.py").write_text("")
    # Python takes links out of the name of a script's folder, and the package has a "strings".
    link = tmp_path / "link"
    link.symlink_to(pathlib.Path(children.__file__).parents[2])
    command = children.command("-c", "import triton_ext, sys; print(triton_ext.__file__, sys.path)")
    at = next(index for index, word in enumerate(command) if word.endswith("child.py"))
    command[at] = str(link / "triton_ext" / "host" / "child.py")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"{link}/triton_ext/__init__.py ["), done.stderr
    assert "/host'" not in done.stdout


def test_a_child_of_a_thread_that_just_ended_is_not_asked():
    text = "module {\n}\n"
    for _ in range(10):
        with HostProcess(find_library()) as process:
            thread = threading.Thread(target=process.run, args=(text, "in.mlir"))
            thread.start()
            thread.join()
            assert process.run(text, "in.mlir").diagnostics == ()


def test_a_child_of_a_thread_that_ended_is_started_again():
    text = "module {\n}\n"
    with HostProcess(find_library()) as process:
        thread = threading.Thread(target=process.run, args=(text, "in.mlir"))
        thread.start()
        thread.join()
        assert ends(process._child.pid)
        result = process.run(text, "in.mlir", [Call("cse", "passes.common.add_cse", ())])
    assert result.text is not None


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    children._remove_abandoned.cache_clear()
    yield tmp_path
    children._remove_abandoned.cache_clear()


def test_a_folder_of_a_killed_process_is_removed_by_the_next(temporary):
    code = (
        "import os, signal\nfrom triton_ext.host.children import TemporaryFolder\n"
        "folder = TemporaryFolder()\nopen(folder.name + '/x', 'w')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    (left,) = temporary.iterdir()
    with children.TemporaryFolder() as folder:
        assert not left.exists()
        assert [path.name for path in temporary.iterdir()] == [os.path.basename(folder)]
    assert list(temporary.iterdir()) == []


def test_a_folder_that_cannot_be_opened_is_an_error(temporary, monkeypatch):
    tried = []

    def refuse(*_):
        tried.append(1)
        assert len(tried) < 5
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="too many open files"):
        children.TemporaryFolder()
    assert list(temporary.iterdir()) == []


def test_a_folder_that_cannot_be_read_hides_no_others(temporary, monkeypatch):
    lock = children._locked
    for name in "abc":
        (temporary / f"triton-ext-run-{name}").mkdir()

    def locked(path, how):
        if not path.endswith("-b") and how & fcntl.LOCK_NB:
            raise OSError(errno.EACCES, path)
        return lock(path, how)

    monkeypatch.setattr(children, "_locked", locked)
    with children.TemporaryFolder():
        assert not (temporary / "triton-ext-run-b").exists()


def test_folders_of_others_stay(temporary):
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (temporary / "triton-ext-run-link").symlink_to(elsewhere)
    (temporary / "triton-ext-run-file").write_text("")
    (temporary / "triton-ext-other").mkdir()
    with children.TemporaryFolder() as first:
        children._remove_abandoned.cache_clear()
        with children.TemporaryFolder():
            assert os.path.isdir(first)
    names = sorted(path.name for path in temporary.iterdir())
    assert names == ["elsewhere", "triton-ext-other", "triton-ext-run-file", "triton-ext-run-link"]


def test_a_fork_leaves_the_folder_to_its_parent(temporary):
    folder = children.TemporaryFolder()
    process = os.fork()
    if process == 0:
        folder.cleanup()
        os._exit(0)
    os.waitpid(process, 0)
    assert os.path.isdir(folder.name)
    folder.cleanup()
    assert not os.path.isdir(folder.name)
