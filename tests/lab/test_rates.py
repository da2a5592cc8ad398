from pathlib import Path

import pytest

from omnizen.errors import UserError
from omnizen.lab import Link, load_rates, parse_rate
from omnizen.lab.rates import show_rate


@pytest.mark.parametrize(
    ("text", "bit_per_s"),
    [("10mbit", 10e6), ("1gbit", 1e9), ("25kbit", 25e3), ("2.5Mbit", 2.5e6), (" 8000bit ", 8e3), ("100 mbit", 1e8)],
)
def test_rates_are_read(text: str, bit_per_s: float) -> None:
    assert parse_rate(text) == bit_per_s


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("100", "has no unit; write for example 100mbit"),
        ("100mbits", "did you mean 'mbit'"),
        ("10mb/s", "allowed: bit, kbit, mbit, gbit"),
        ("fast", "not a number with a unit"),
        ("-1mbit", "not a number with a unit"),
        ("nanmbit", "not a number with a unit"),
        ("0mbit", "rates lie between 1 kbit/s and 100 Gbit/s"),
        ("200gbit", "rates lie between"),
        ("", "not a number with a unit"),
    ],
)
def test_wrong_rates_are_refused_with_a_sentence(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_rate(text)


def test_rates_are_shown_for_people() -> None:
    assert [show_rate(r) for r in (1e9, 25e6, 2.5e6, 25e3, 10)] == [
        "1 Gbit/s", "25 Mbit/s", "2.5 Mbit/s", "25 kbit/s", "10 bit/s",
    ]  # fmt: skip


def test_a_text_file_gives_hosts_links_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "rates.txt"
    file.write_text("# slow ones\n3 10mbit\n\n5 10mbit 50mbit  # up, down\n")
    assert load_rates(file) == {3: Link(10e6, 10e6), 5: Link(10e6, 50e6)}


def test_a_toml_file_gives_the_same(tmp_path: Path) -> None:
    file = tmp_path / "rates.toml"
    file.write_text('[hosts.3]\nrate = "10mbit"\n[hosts.5]\nup = "10mbit"\ndown = "50mbit"\n')
    assert load_rates(file) == {3: Link(10e6, 10e6), 5: Link(10e6, 50e6)}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("r.txt", "3 10\n", "line 1: rate '10' has no unit"),
        ("r.txt", "\n3\n", "line 2: write HOST RATE or HOST UP DOWN"),
        ("r.txt", "x 10mbit\n", "host 'x' is not a number"),
        ("r.txt", "1 10mbit\n1 10mbit\n", "line 2: host 1 is named twice"),
        ("r.toml", "[host.3]\n", "did you mean 'hosts'"),
        ("r.toml", "version = 4\n[[devices]]\nrank = 0\n", "it holds facts; wanted here: a table for each host"),
        ("r.toml", "version = 1\n[[tensors]]\n", "it holds a plan; wanted here"),
        ("r.toml", '[hosts.3]\nuo = "1mbit"\n', "did you mean 'up'"),
        ("r.toml", '[hosts.3]\nup = "1mbit"\n', "both 'up' and 'down'"),
        ("r.toml", "[hosts.3]\nrate = 100\n", "has no unit"),
        ("r.toml", "hosts = 3\n", "a table per host"),
        ("r.toml", "[hosts\n", "rates file"),
        ("r.txt", "# nothing\n", "it names no host"),
        ("r.toml", "", "it names no host"),
        ("r.toml", '[hosts.1]\nrate = "1mbit"\n[hosts.01]\nrate = "2mbit"\n', "host 1 is named twice"),
        ("r.toml", "a = " + "[" * 5000, "rates file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, name: str, text: str, says: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        load_rates(file)
    assert name in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing.toml cannot be read"):
        load_rates(tmp_path / "nothing.toml")
