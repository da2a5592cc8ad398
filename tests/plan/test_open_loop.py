"""Shares before the first step, from facts."""

from __future__ import annotations

import pytest

from omnizen.errors import UserError
from omnizen.measure.facts import DeviceFacts, Facts
from omnizen.plan.apportion import apportion
from omnizen.plan.open_loop import advice, shares_from


def facts(*devices: dict, world_size: int | None = None) -> Facts:
    common = {"host": "here", "device": "cpu", "name": "a processor", "cores": 1.0, "memory_bytes": 2**30}
    made = [
        DeviceFacts(**{"rank": rank, "merge_bytes_per_s": 1e9} | common | device)
        for rank, device in enumerate(devices)
    ]
    return Facts(torch_version="2.13.0", world_size=world_size or len(devices), devices=made)


def test_rates_of_the_users_own_step_count() -> None:
    found = facts(
        {"samples_per_s": {"8": 100.0, "32": 300.0}, "cores": 2.0},
        {"samples_per_s": {"8": 100.0, "32": 100.0, "64": 900.0}, "cores": 64.0},
    )
    assert shares_from(found) == (0.75, 0.25)
    assert shares_from(found, batch=10) == (0.5, 0.5)


def test_an_even_split_takes_twice_as_long_as_one_by_rates_where_one_device_is_a_third_as_fast() -> None:
    """Rates 1 and 1/3: even parts take 1.5 b, parts by rate 0.75 b."""
    rates = (1.0, 1 / 3)
    shares = shares_from(facts(*({"samples_per_s": {"64": rate}} for rate in rates)))
    even, by_rate = (
        max(n / rate for n, rate in zip(sizes, rates, strict=True)) for sizes in ((64, 64), apportion(128, shares))
    )
    assert even / by_rate == pytest.approx(2.0, rel=0.1)


def test_a_plan_says_what_balanced_batches_would_bring() -> None:
    (line,) = advice(facts({"samples_per_s": {"8": 30.0}}, {"samples_per_s": {"8": 10.0}}))
    assert "shares 0.75, 0.25" in line
    assert "take 50% of the compute time" in line
    assert not advice(facts({"samples_per_s": {"8": 30.0}}, {"samples_per_s": {"8": 29.0}}))
    assert not advice(facts({"samples_per_s": {"8": 30.0}}, world_size=2))


def test_without_rates_cores_count() -> None:
    assert shares_from(facts({"cores": 3.0}, {"cores": 1.0, "samples_per_s": {"8": 5.0}})) == (0.75, 0.25)


def test_what_says_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="device of rank 1"):
        shares_from(facts({}, world_size=2))
    with pytest.raises(UserError, match="rank 1 computes on cuda:0"):
        shares_from(facts({}, {"device": "cuda:0"}))
