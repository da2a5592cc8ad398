import os
import socket

import numpy as np
import pytest

from omnizen.data import stdlib_text
from omnizen.data.tokens import UNKNOWN, encode, split
from omnizen.errors import UserError


def words_of(corpus):
    return [corpus.words[i] for i in corpus.ids]


def test_split_keeps_names_numbers_and_signs():
    assert split("def naïve_2(x): return x*10") == [
        *("def", "naïve_2", "(", "x", ")", ":", "return", "x", "*", "10"),
    ]


def test_words_are_numbered_by_falling_frequency():
    arrays = encode([["b", "a", "a"], ["c", "a", "b"]])
    assert arrays["ids"].tolist() == [2, 1, 1, 3, 1, 2]
    assert arrays["words"].tobytes().decode().split("\n") == [UNKNOWN, "a", "b", "c"]


def test_rare_words_beyond_the_vocabulary_become_unknown():
    arrays = encode([["a", "a", "b", "b", "c"]], vocabulary=3)
    assert arrays["ids"].tolist() == [1, 1, 2, 2, 0]


def test_a_folder_is_read_in_order_of_names_without_hidden_files(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "b" / "z.txt").write_text("last")
    (tmp_path / "a.txt").write_text("first one")
    (tmp_path / "c.md").write_text("second")
    (tmp_path / ".git" / "x").write_text("hidden")
    (tmp_path / ".hidden").write_text("hidden")
    corpus = stdlib_text.load(tmp_path)
    assert words_of(corpus) == ["first", "one", "second", "last"]
    assert corpus.note == ""


def test_a_changed_folder_is_read_again(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    assert words_of(stdlib_text.load(folder)) == ["one"]
    (folder / "b.txt").write_text("two")
    assert words_of(stdlib_text.load(folder)) == ["one", "two"]


def test_a_second_load_does_not_read_the_files(tmp_path, monkeypatch):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("one two")
    first = stdlib_text.load(folder)
    monkeypatch.setattr(stdlib_text, "encode", None)
    second = stdlib_text.load(folder)
    assert np.array_equal(first.ids, second.ids)
    assert first.words == second.words


def test_binary_files_are_left_out_and_said(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.bin").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "c.png").write_bytes(b"\x89PNG")
    corpus = stdlib_text.load(tmp_path)
    assert words_of(corpus) == ["text"]
    assert "2 of 3 files are not UTF-8 text and were left out (first:" in corpus.note


def test_unreadable_files_are_left_out_and_said(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    files = [tmp_path / "a.txt", tmp_path / "gone.txt"]
    reader = stdlib_text._Reader(tmp_path, files)
    assert list(reader) == ["text"]
    assert "1 of 2 files are unreadable and were left out (first:" in reader.account()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "has no text files"),
        (lambda folder: (folder / "a").write_bytes(b"\0\1"), "1 of 1 files are not UTF-8"),
        (lambda folder: (folder / "a").write_text(""), "its files are empty"),
        (lambda folder: folder.rmdir(), "does not exist"),
        (lambda folder: (folder.rmdir(), folder.write_text("x")), "is not a folder"),
    ],
    ids=["empty", "binary", "empty files", "missing", "a file"],
)
def test_a_folder_that_cannot_be_used_says_why(tmp_path, make, message):
    folder = tmp_path / "text"
    folder.mkdir()
    make(folder)
    with pytest.raises(UserError, match=message):
        stdlib_text.load(folder)


def test_sockets_and_dead_links_are_passed_over(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "dead").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s")[:100])
        assert words_of(stdlib_text.load(tmp_path)) == ["text"]


def test_the_standard_library_is_a_large_corpus_of_frequent_words_first():
    corpus = stdlib_text.load()
    assert len(corpus.ids) > 1_000_000
    assert 30_000 < corpus.num_words <= 50_000
    counts = np.bincount(corpus.ids, minlength=corpus.num_words)[1:]
    assert (np.diff(counts) <= 0).all()
    assert corpus.words[:2] == [UNKNOWN, "."]
