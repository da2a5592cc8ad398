"""Tuning from end to end on thread ranks: what is written, gone on with, reused, refused."""

import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.measure.facts import Facts
from omnizen.measure.subject import Subject
from omnizen.plan.layouts import even
from omnizen.plan.plan import Execution, Plan
from omnizen.plan.tuner import Point
from omnizen.report.page import write_report
from omnizen.train.run import Run
from omnizen.train.tuning import Stretch, Update, Way, pricing
from omnizen.train.tuning.ending import LocalBoard
from omnizen.train.tuning.session import Session
from omnizen.train.tuning.settings import TuningSettings
from omnizen.train.tuning.stretch import thinned

X = torch.randn(256, 6, generator=torch.Generator().manual_seed(1))
Y = X @ torch.arange(6.0)
QUICK = {"probe_s": 0.05, "horizon_s": 8.0, "measure_s": 0.2}


def mse(model, batch):
    return (model(batch[0]).squeeze(-1) - batch[1]).square().mean()


def subject(width=6, batch=4):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(X[:, :width], Y), batch_size=batch, shuffle=True)
    return Subject(
        nn.Linear(width, 1),
        {4: [(X[:4, :width], Y[:4])]},
        mse,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.02),
        loader,
    )


def tune(folder, *, size=2, given=None, asked=lambda rank, said: False, **settings):
    """Tune on thread ranks; returns every rank's outcome, and what rank 0 said."""
    board, said = LocalBoard(), []
    settings = TuningSettings(**QUICK | settings)

    def work(comm):
        names = iter(range(10_000))

        def begin():
            number, everyone = next(names), range(comm.size)
            return Run(comm.sub(everyone, f"gradients{number}"), comm.sub(everyone, f"control{number}"))

        session = Session(
            begin(), given or subject(), folder, settings, begin=begin, board=board, say=said.append,
            asked_to_end=lambda: asked(comm.rank, said),
        )  # fmt: skip
        return session.go()

    return run_ranks(size, work, timeout_s=20.0), said


def test_facts_prices_plan_and_report_are_written_and_reused(tmp_path, monkeypatch):
    monkeypatch.setattr(pricing, "LEAST_UPDATES", 5)
    monkeypatch.setattr(pricing, "WORTH", 100.0)  # whatever this machine is like, something is worth a probe
    (one, two), said = tune(tmp_path)
    assert not one.interrupted
    assert one.plan == two.plan == Plan.load(tmp_path / "plan.toml")
    assert one.plan.execution.momentum is not None
    assert one.plan.execution.lr > 0
    ledger = json.loads((tmp_path / "prices.json").read_text())
    assert ledger["found"] or any("no price is probed: that takes" in line for line in said)  # on a busy machine
    assert all((c["ratio"] is None) != (c["reason"] == "") for found in ledger["found"].values() for c in found)
    assert any(line.startswith("prices: ") for line in said)
    facts = Facts.load(tmp_path / "facts.toml")
    assert all(price.probes >= 1 and price.low <= price.samples <= price.high for price in facts.prices)
    told = len(json.loads((tmp_path / "tuner.json").read_text())["told"])
    (again, _), said = tune(tmp_path)
    assert any("reused: same model, workers and torch" in line for line in said)
    assert len(json.loads((tmp_path / "tuner.json").read_text())["told"]) == told  # nothing is probed twice
    assert again.tuned_s == one.tuned_s
    text = write_report([tmp_path]).read_text()
    assert "What the search tried and decided" in text
    assert "cold start" in text


def test_it_goes_on_wherever_it_was_ended(tmp_path):
    counts = []
    for _ in range(6):
        (one, _), said = tune(
            tmp_path, train=True, horizon_s=3.0, save_every_s=0.3,
            asked=lambda rank, said: rank == 1 and sum("loss" in s or "training" in s for s in said) > 2,
        )  # fmt: skip
        text = (tmp_path / "tuner.json").read_text() if (tmp_path / "tuner.json").exists() else '{"told": []}'
        counts.append(len(json.loads(text)["told"]))
        if not one.interrupted:
            break
        said.clear()
    (one, _), said = tune(tmp_path, train=True, horizon_s=3.0, save_every_s=0.3)
    assert not one.interrupted
    assert said[-1].startswith("done: the 3 s that were asked for are over")
    assert counts == sorted(counts)
    model = nn.Linear(6, 1)
    model.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert mse(model, (X, Y)) < mse(subject().model, (X, Y))


def test_a_folder_of_another_search_is_refused(tmp_path):
    tune(tmp_path, size=1)
    with pytest.raises(UserError, match=r"holds a search with horizon_s 8\.0, not 30\.0; ask for the same"):
        tune(tmp_path, size=1, horizon_s=30.0)
    with pytest.raises(UserError, match="holds a search for another model"):
        tune(tmp_path, size=1, given=subject(width=3))
    (tmp_path / "facts.toml").unlink()
    with pytest.raises(UserError, match=r"facts.toml is gone"):
        tune(tmp_path, size=1)


def test_a_loader_with_other_batches_than_measured_is_refused(tmp_path):
    with pytest.raises(UserError, match="batches have 8 samples, and the largest that is measured 4"):
        tune(tmp_path, size=1, given=subject(batch=8))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"search": "halvin"}, "did you mean 'halving'"),
        ({"overhead": 1.0}, "between 0 and 1"),
        ({"horizon_s": 0.0}, "horizon_s must be above 0"),
        ({"probe_s": float("nan")}, "probe_s must be above 0"),
        ({"probe_s": 9.0, "horizon_s": 60.0}, "one probe of 9 s is more than the 6 s that tuning may take"),
    ],
)
def test_settings_that_are_refused(given, says):
    with pytest.raises(UserError, match=says):
        TuningSettings(**given)


def test_prices_come_from_rounds_and_one_that_diverges_is_rejected_with_its_numbers():
    usual = {"update_s": 1.0, "samples_per_s": 8.0, "relative": 0.5, "relative_low": 0.5, "relative_high": 0.5}
    asynchronous = Execution(strategy="groups", groups=[[0], [1]], batch_shares=[4, 4], **usual)
    local = Execution(strategy="local", groups=[[0, 1]], batch_shares=[4, 4], local_steps=[4, 4], **usual)
    wanted = [pricing.Candidate(asynchronous, Point(2, 0.1, 0.0)), pricing.Candidate(local, Point(1, 0.1, 0.9))]

    def stretch(way, point):
        pace = 400.0 if way.title == "2 groups" else 200.0
        losses = [3.0 * math.exp(-8 * n / pace) for n in range(200)]
        losses = [*losses[:5], math.inf] if way.every else losses
        return Stretch(tuple(Update(float(n), loss, 8) for n, loss in enumerate(losses)), (), 2.0, {})

    ledger = pricing.Ledger()
    for _ in range(2):
        ledger = pricing.Ledger.from_table(json.loads(json.dumps(ledger.to_table())))  # as a call that goes on does
        assert pricing.one_round(wanted, (Way(even(2, 1, 8)), Point(1, 0.1, 0.9)), stretch, ledger)
    (made,) = pricing.prices(wanted, ledger)
    assert made.of == ("groups", 2, 1.0, "")
    assert made.samples == pytest.approx(2.0, rel=0.05)
    assert (made.momentum, made.lr, made.probes) == (0.0, 0.1, 2)
    assert ledger.seconds == 2 * 3 + 2 * 2  # what diverged is not probed again
    (rejected,) = [text for kind, text, *_ in ledger.notes if kind == "rejected"]
    assert rejected.startswith("4 local steps, lr 0.1, momentum 0.90: diverged: the loss of the strategy")


def test_rounds_get_fewer_before_nothing_is_probed():
    assert pricing.lengths(60.0, 5.0, 1.0, 3) == (3, 3, 5.0)
    assert pricing.lengths(10.0, 5.0, 1.0, 3) == (3, 2, 10 / 9)
    assert pricing.lengths(2.0, 5.0, 1.0, 3) == (1, 1, 1.0)
    assert pricing.lengths(1.9, 5.0, 1.0, 3) is None


def test_many_losses_are_thinned_and_the_last_ones_kept():
    losses = [float(n) for n in range(5000)]
    kept = thinned(losses)
    assert len(kept) <= 400
    assert list(kept[-100:]) == losses[-100:]
    assert kept[0] == 0.0
    assert thinned([1.0, float("nan")])[1] != 1.0
