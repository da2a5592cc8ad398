import os
import threading

import pytest

from omnizen.errors import UserError
from omnizen.measure.files import check_apart, check_can_write, write_whole


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path):
    target, link = tmp_path / "there" / "facts.toml", tmp_path / "facts.toml"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert (target.read_text(), [p.name for p in target.parent.iterdir()]) == ("new", ["facts.toml"])


def test_what_is_no_plain_file_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    check_can_write(pipe)
    write_whole(pipe, "text")
    reader.join(10)
    assert (heard, pipe.is_fifo()) == (["text"], True)


def test_what_is_in_the_way_is_said(tmp_path):
    (tmp_path / "file").write_text("mine")
    for write in (check_can_write, lambda path: write_whole(path, "x")):
        with pytest.raises(UserError, match="it is a folder; give the name of a file in it"):
            write(tmp_path)
        with pytest.raises(UserError, match=r"file is a file, not a folder"):
            write(tmp_path / "file" / "plan.toml")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_is_read_is_not_written_over(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "facts.toml")
    with pytest.raises(UserError, match="is read, and would be lost"):
        check_apart(tmp_path / "link", tmp_path / "plan.toml", tmp_path / "facts.toml")
    check_apart(tmp_path / "other", tmp_path / "facts.toml")
