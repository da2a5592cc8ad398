"""Fetching, with a client of our own in place of the registries' clients."""

import dataclasses
import errno
import hashlib
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from omnizen.data import fetch
from omnizen.data.cache import cache_folder, locked, prepared, work_folder
from omnizen.data.sets import SETS, DataSet, find
from omnizen.errors import UserError

CONTENT = b"the whole file"
ROW = DataSet(
    name="toy",
    what="a toy",
    licence="CC0-1.0",
    registry="npm",
    loader="brown:load",
    package="toy",
    version="1",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size_bytes=len(CONTENT),
)


@pytest.fixture
def client(monkeypatch, tmp_path):
    """Stand in for the client: runs the given Python text in the folder of the download, and counts its runs."""
    runs = tmp_path / "runs"

    def use(text):
        count = f"open({str(runs)!r}, 'a').write('x')\n"
        monkeypatch.setattr(fetch, "command_for", lambda row: [sys.executable, "-c", count + text])
        return lambda: len(runs.read_text()) if runs.exists() else 0

    return use


def give(content):
    return f"open('toy-1.tgz', 'wb').write({content!r})"


def left_behind():
    return sorted(p.name for p in cache_folder().iterdir() if p.suffix != ".lock")


def test_a_file_is_fetched_once_and_kept(client):
    runs = client(give(CONTENT))
    said = []
    first = fetch.obtain(ROW, say=said.append)
    second = fetch.obtain(ROW, say=said.append)
    assert first == second == fetch.archive_path(ROW)
    assert first.read_bytes() == CONTENT
    assert runs() == 1
    assert len(said) == 1
    assert "toy 1 through npm" in said[0]
    assert left_behind() == [first.name]


def test_another_digest_is_an_error_that_names_both_and_keeps_nothing(client):
    client(give(b"something else"))
    found = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(UserError, match=f"sha256 {found}, expected {ROW.sha256}"):
        fetch.obtain(ROW)
    assert left_behind() == []


def test_half_a_download_is_never_used(client):
    client(give(CONTENT[:5]) + "; raise SystemExit('connection reset')")
    with pytest.raises(UserError, match="connection reset"):
        fetch.obtain(ROW)
    assert left_behind() == []
    client(give(CONTENT))
    assert fetch.obtain(ROW).read_bytes() == CONTENT


def test_a_cached_file_that_was_damaged_is_fetched_again(client):
    runs = client(give(CONTENT))
    fetch.obtain(ROW).write_bytes(CONTENT[:5])
    said = []
    assert fetch.obtain(ROW, say=said.append).read_bytes() == CONTENT
    assert runs() == 2
    assert "is damaged" in said[0]


def test_a_client_that_does_not_end_is_stopped(client):
    client("import time; time.sleep(600)")
    with pytest.raises(UserError, match="no end after 1 s"):
        fetch.obtain(ROW, limit_s=1)


@pytest.mark.parametrize(("text", "count"), [("", 0), ("open('a','w'); open('b','w')", 2)], ids=["none", "two"])
def test_a_client_must_leave_one_file(client, text, count):
    client(text)
    with pytest.raises(UserError, match=f"left {count} files"):
        fetch.obtain(ROW)


def test_a_missing_client_is_named_with_a_way_out(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match=r"this machine has no npm; install it, or copy toy 1 to .*\.archive"):
        fetch.obtain(ROW)


def test_two_at_once_fetch_once(client):
    runs = client("import time; time.sleep(0.3)\n" + give(CONTENT))
    threads = [threading.Thread(target=fetch.obtain, args=(ROW,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert runs() == 1


def test_a_lock_that_is_held_for_too_long_is_an_error():
    with (
        locked("busy"),
        pytest.raises(UserError, match=r"another process has held .*busy\.lock for more than 0 s"),
        locked("busy", limit_s=0),
    ):
        pass


def test_a_missing_package_list_is_updated_once_by_root(monkeypatch):
    runs = []

    def run(command, folder, limit_s):
        runs.append(command[1])
        if command[1] == "download" and runs.count("download") == 1:
            return "E: Unable to locate package toy"
        if command[1] == "download":
            (folder / "toy.deb").write_bytes(CONTENT)
        return ""

    monkeypatch.setattr(fetch, "_run", run)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: name)
    monkeypatch.setattr(fetch.os, "geteuid", lambda: 0)
    row = dataclasses.replace(ROW, registry="apt")
    assert fetch.obtain(row).read_bytes() == CONTENT
    assert runs == ["download", "update", "download"]


def test_prepared_arrays_are_made_once_and_damage_is_said():
    import numpy as np

    made = []

    def make():
        made.append(1)
        return {"a": np.arange(3)}

    for _ in range(2):
        assert prepared("toy", "1", make)["a"].tolist() == [0, 1, 2]
    assert len(made) == 1
    (cache_folder() / "toy-1.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"toy-1\.npz is damaged"):
        prepared("toy", "1", make)


def test_a_preparation_that_fails_leaves_nothing():
    with pytest.raises(ZeroDivisionError):
        prepared("toy", "1", lambda: {"a": 1 / 0})
    assert left_behind() == []


def test_a_cache_that_cannot_be_made_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OMNIZEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set OMNIZEN_CACHE"):
        cache_folder()


def test_unknown_set_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'fashion-mnist'"):
        find("fashion_mnist")


@pytest.mark.parametrize("row", [row for row in SETS.values() if row.registry != "here"], ids=lambda row: row.name)
def test_every_row_pins_a_version_and_a_digest(row):
    assert len(row.sha256) == 64
    assert row.version
    assert row.size_bytes > 0
    command = fetch.command_for(row)
    assert row.package in command[-1]
    assert command[-1].endswith(row.version)


def test_what_is_here_is_not_downloaded():
    with pytest.raises(UserError, match="not downloaded"):
        fetch.command_for(SETS["stdlib"])


def test_what_a_client_prints_may_be_anything_and_is_cut(client):
    client("import os, sys; os.write(2, b'\\xff\\xfe ' + 100_000 * b'x'); sys.exit(3)")
    with pytest.raises(UserError, match="could not bring") as raised:
        fetch.obtain(ROW)
    assert len(str(raised.value)) < 600


def test_a_client_that_does_not_end_is_ended_with_its_children(client, tmp_path):
    said = tmp_path / "pid"
    client(
        "import subprocess, time\n"
        f"open({str(said)!r}, 'w').write(str(subprocess.Popen(['sleep', '1000']).pid))\n"
        "time.sleep(1000)"
    )
    with pytest.raises(UserError, match="no end after 5 s"):
        fetch.obtain(ROW, limit_s=5.0)
    stat = Path("/proc", said.read_text(), "stat")
    deadline_s = time.monotonic() + 20
    while stat.exists() and stat.read_text().split()[2] not in "ZX" and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not stat.exists() or stat.read_text().split()[2] in "ZX"
    assert left_behind() == []


def test_what_killed_processes_left_is_removed_and_what_is_in_use_is_not():
    (cache_folder() / "unfinished-killed").mkdir()
    (cache_folder() / "unfinished-killed" / "part").write_text("")
    with work_folder() as used, work_folder() as other:
        assert left_behind() == sorted([used.name, other.name])
    assert left_behind() == []


def test_a_full_disk_is_told_with_what_to_do(monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(
        UserError, match=r"cannot be written \(No space left on device\); make room or set OMNIZEN_"
    ):
        prepared("toy", "1", lambda: {"a": np.zeros(1)})
    assert left_behind() == []


def test_a_lock_that_cannot_be_made_is_told():
    (cache_folder() / "toy.lock").mkdir()
    with pytest.raises(UserError, match=r"toy.lock cannot be written \(Is a directory\)"), locked("toy"):
        pass
