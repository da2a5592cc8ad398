"""Rows that are made, and rows that are refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from omnizen.errors import UserError
from omnizen.strategies.strategy import Strategy
from omnizen.strategies.sync import sync


def test_sync_is_a_frozen_row() -> None:
    row = sync("zen-bitmap")
    assert (row.share, row.reducer, row.every, row.delay) == ("grad", "zen-bitmap", 1, 0)
    assert row == Strategy(reducer="zen-bitmap")
    with pytest.raises(FrozenInstanceError):
        row.every = 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share": "gard"}, "did you mean 'grad'"),
        ({"share": "delta"}, "share='delta' is not supported yet; this release trains with share='grad'"),
        ({"every": 4}, "every=4 is not supported"),
        ({"delay": 1}, "delay=1 is not supported"),
        ({"members": "some"}, "members='some' is not supported"),
        ({"outer": "nesterov"}, "outer='nesterov' is not supported"),
        ({"reducer": "zen-bitmp"}, "did you mean 'zen-bitmap'"),
    ],
)
def test_what_cannot_be_done_is_refused(options, said) -> None:
    with pytest.raises(UserError, match=said):
        Strategy(**options)
