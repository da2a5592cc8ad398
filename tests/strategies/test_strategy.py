"""Rows that are made, and rows that are refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from omnizen.errors import UserError
from omnizen.strategies.local import local_sgd
from omnizen.strategies.strategy import Strategy
from omnizen.strategies.sync import sync


def test_sync_is_a_frozen_row() -> None:
    row = sync("zen-bitmap")
    assert (row.share, row.reducer, row.every, row.delay) == ("grad", "zen-bitmap", 1, 0)
    assert row == Strategy(reducer="zen-bitmap")
    assert sync("zen").reducer == "zen", "another name of zen-coo, as everywhere"
    with pytest.raises(FrozenInstanceError):
        row.every = 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share": "gard"}, "did you mean 'grad'"),
        ({"every": 4}, "share='grad' and every=4 is not supported yet; use every=1"),
        ({"pool": 2.0}, "pool=2.0 is not supported"),
        ({"delay": 1}, "delay=1 is not supported"),
        ({"members": "some"}, "members='some' is not supported"),
        ({"outer": "nesterov"}, "outer='nesterov' is not supported"),
        ({"reducer": "zen-bitmp"}, "did you mean 'zen-bitmap'"),
        ({"share": "delta", "reducer": "topk(densty=0.1)"}, "no such setting"),
    ],
)
def test_what_cannot_be_done_is_refused(options, said) -> None:
    with pytest.raises(UserError, match=said):
        Strategy(**options)


def test_local_sgd_is_a_frozen_row() -> None:
    row = local_sgd([32, 1], pool=4.0)
    assert row == Strategy(share="params", every=(32, 1), pool=4.0)
    assert local_sgd(10, share="delta", reducer="sbc").reducer == "sbc"
    assert local_sgd("speed").most == 32


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": 0}, "every: a whole number of local steps of 1 or more"),
        ({"every": [4, 0]}, r"got \[4, 0\]"),
        ({"every": 2.5}, "every: a whole number"),
        ({"every": True}, "every: a whole number"),
        ({"every": []}, "every: a whole number"),
        ({"every": "sped"}, "did you mean 'speed'"),
        ({"pool": 0.5}, "pool: a number of 1 or more"),
        ({"pool": float("nan")}, "pool: a number of 1 or more"),
        ({"mean": "step"}, "did you mean 'steps'"),
        ({"most": 0}, "most: a whole number of 1 or more"),
        ({"accumulate": 0}, "accumulate: a whole number of 1 or more"),
        ({"share": "grads"}, "did you mean 'grad'"),
        ({"reducer": "topk"}, "share='delta' sends what a round changed through a reducer"),
    ],
)
def test_bad_local_steps_are_refused_when_they_are_made(options, said) -> None:
    with pytest.raises(UserError, match=said):
        local_sgd(**options)


def test_strategies_are_reached_from_the_package() -> None:
    import omnizen as oz

    assert oz.strategies.local_sgd(3) == local_sgd(3)
