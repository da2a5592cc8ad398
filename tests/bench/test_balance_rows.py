"""Rows of ``omnizen bench balance`` from what workers answered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omnizen.bench import balance
from omnizen.bench.balance import Settings, rows_of, run_balance, settled
from omnizen.bench.balance_worker import BalanceAnswer, Trained
from omnizen.bench.cases.flights import FlightsCase
from omnizen.bench.cases.lm import LmCase
from omnizen.bench.dealt import loader
from omnizen.data.tokens import TokenCorpus
from omnizen.errors import UserError


def answer(rank: int, alone_s: float, *, even_s: float, balanced_s: float) -> BalanceAnswer:
    even = Trained(step_s=[9.0, 9.0] + [even_s] * 8, samples=[128] * 10, sizes=(64, 64), first_sizes=(64, 64))
    balanced = Trained(
        step_s=[even_s] * 9 + [balanced_s] * 21,
        samples=[128] * 30,
        adjusted=[4],
        sizes=(96, 32),
        first_sizes=(64, 64),
    )
    return BalanceAnswer(
        rank=rank,
        alone_s=[alone_s] * 3,
        beside_s=[2 * alone_s] * 3,
        trained={"even": even, "balanced-from-even": balanced},
    )


def test_fractions_are_of_the_sum_of_the_workers_own_rates() -> None:
    """Rates of 64 and 64 / 3 samples a second: even batches wait 3 s, balanced ones 1.6 s."""
    settings = Settings(hosts=2, cpu=(1.0, 0.33), batch=64, methods=("even", "balanced-from-even"))
    found = [answer(rank, slowness, even_s=3.0, balanced_s=1.6) for rank, slowness in enumerate((1.0, 3.0))]
    shared = {"bench": "balance", "case": "cnn", "hosts": 2, "rate_mbit": 1000.0}
    rows = {(r.method, r.metric): r for r in rows_of(settings, 64, found, {"batch": 64}, shared)}
    total = 64 + 64 / 3
    assert rows["alone", "samples_per_s"].value == pytest.approx(total)
    assert rows["even", "fraction_of_sum_rate"].value == pytest.approx(128 / 3 / total)
    assert rows["balanced-from-even", "fraction_of_sum_rate"].value == pytest.approx(128 / 1.6 / total)
    assert rows["balanced-from-even", "fraction_of_sum_beside"].value == pytest.approx(2 * 128 / 1.6 / total)
    assert rows["balanced-from-even", "adjustments"].value == 1
    assert rows["balanced-from-even", "step_s"].repeats == 22
    assert "96, 32" in str(list(balance.table(list(rows.values())).columns[5].cells))


def test_steps_that_count_come_after_the_early_changes() -> None:
    trained = Trained(step_s=[1.0] * 30, adjusted=[4, 9, 25])
    assert settled(trained, 2) == list(range(13, 30))
    assert settled(Trained(step_s=[1.0] * 5), 2) == [2, 3, 4]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"case": "flights"}, "case: got 'flights'"),
        ({"methods": ("evn",)}, "did you mean 'even'"),
        ({"cpu": (1.0,)}, "a speed for each"),
        ({"steps": 5}, "more than 6 steps"),
        ({"batch": 0}, "batch must be"),
    ],
)
def test_settings_that_cannot_be(wrong: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Settings(**wrong)


def test_a_worker_that_fails_gives_a_failed_row() -> None:
    def launch(command, on_line, limit_s):
        on_line(1, "no such thing")
        return [0, 1]

    (row,) = run_balance(Settings(hosts=2, cpu=(1.0, 1.0)), launch=launch)
    assert (row.metric, row.params["reason"]) == ("failed", "rank 0 ended with status 0 and no answer: no output")


def test_cases_are_dealt_out_sample_by_sample() -> None:
    corpus = TokenCorpus("made up", np.arange(60, dtype=np.int32) % 40, [str(i) for i in range(40)], "")
    case = LmCase(corpus=corpus, length=5, num_negatives=4)
    assert case.num_samples == 11
    tokens, targets, negatives = case.take([2, 0])
    assert tokens.tolist() == [[10, 11, 12, 13, 14], [0, 1, 2, 3, 4]]
    assert torch.equal(targets, (tokens + 1) % 40)
    assert torch.equal(negatives, case.take([2])[2])
    read = [first for batch in loader(case, 4) for first in batch[0][:, 0].tolist()]
    assert sorted(read) == sorted((5 * i) % 40 for i in range(11))
    with pytest.raises(UserError, match="cannot be dealt out"):
        _ = FlightsCase.__new__(FlightsCase).num_samples
