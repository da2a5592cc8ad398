"""plan="auto" with facts and prices of this job: a whole strategy from the first step on, the same on all ranks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.errors import UserError
from omnizen.measure.facts import DeviceFacts, Facts, GradientFacts, LinkFacts, MeetingFacts, PriceFacts, StepFacts
from omnizen.measure.model import model_digest
from omnizen.plan.plan import Plan
from omnizen.train import auto, prepare
from omnizen.train.driver import EveryStep
from omnizen.train.foreknown import KEPT
from omnizen.train.groups.driver import Groups
from omnizen.train.local import LocalSteps
from omnizen.train.run import Run
from tests.train.helpers import on_ranks, sgd

PRICES = {
    "groups": PriceFacts(strategy="groups", groups=2, samples=0.5, low=0.4, high=0.6, momentum=0.2),
    "local": PriceFacts(strategy="local", local_steps=16, samples=1.1, low=1.0, high=1.2),
}


@pytest.fixture(autouse=True)
def _brief(monkeypatch) -> None:
    """Measuring machines takes seconds and is not what is looked at here."""
    measured = auto.Machines(facts().links, [d.model_copy(update={"samples_per_s": {}}) for d in facts().devices],
                             MeetingFacts(gather_s=1e-3, sum_s=1e-3))  # fmt: skip
    monkeypatch.setattr(prepare, "measure_machines", lambda _: measured)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def facts(*names: str, **changes: Any) -> Facts:
    """Describe two machines, one three times slower, on links over which a step takes longer than it computes."""
    devices = [
        DeviceFacts(rank=r, host="h", device="cpu", name="a processor", cores=1, memory_bytes=2**33,
                    merge_bytes_per_s=1e9, samples_per_s={"4": 300.0 / (1 + 2 * r)})
        for r in range(2)
    ]  # fmt: skip
    links = [LinkFacts(source=a, dest=1 - a, latency_s=0.02, bandwidth_bytes_per_s=1e4) for a in range(2)]
    told = {
        "created": "2026-01-01",
        "torch_version": torch.__version__,
        "world_size": 2,
        "model_digest": model_digest(net()),
        "devices": devices,
        "links": links,
        "gradients": [
            GradientFacts(name=n, kind="dense", shape=tuple(p.shape)) for n, p in net().named_parameters()
        ],
        "step": StepFacts(compute_s=0.04, backward_s=0.02, samples=4),
        "prices": [PRICES[name] for name in names],
    }
    return Facts(**told | changes)


def prepared(run: Run, **options: Any) -> Any:
    model = net()
    loader = DataLoader(TensorDataset(torch.zeros(40, 2)), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return run.prepare(model, options.pop("optimizer", None) or optimizer, options.pop("loader", loader), **options)


def driven(caplog: Any, **options: Any) -> tuple[list[Any], str]:
    """Prepare on two ranks; return what each holds, and what was said."""

    def body(run: Run) -> Any:
        prepared(run, **options)
        return type(run.driver), run.plan, run._watch is not None, run._lookout is not None, run.optimizers

    caplog.clear()
    with caplog.at_level(logging.INFO, logger="omnizen"):
        found = on_ranks(2, body, run_dir=options.pop("run_dir", None))
    assert found[0][:2] == found[1][:2]
    return found, caplog.text


def test_groups_from_the_first_step_on(tmp_path: Path, caplog) -> None:
    path = facts("groups").save(tmp_path / "facts.toml")
    for options in ({"facts": path}, {"facts": facts("groups")}):
        found, said = driven(caplog, **options)
        assert [kind for kind, *_ in found] == [Groups] * 2
        assert not any(watch or lookout for _, _, watch, lookout, _ in found)
        assert {o[0].param_groups[0]["momentum"] for *_, o in found} == {0.2}
        assert "plan in force from step 0: 2 groups of ranks 0; 1, momentum 0.2" in said
        assert "times the time of plain synchronous training to the same loss; momentum was 0.9; by facts" in said
        assert " from 2026-01-01" in said
        plan = found[0][1]
        assert any(other.strategy == "local" and other.price is None for other in plan.alternatives)


def test_facts_that_lie_in_the_run_directory(tmp_path: Path, caplog) -> None:
    facts("local").save(tmp_path / "facts.toml")

    def body(run: Run) -> Any:
        prepared(run)
        return type(run.driver)

    assert on_ranks(2, body, run_dir=tmp_path) == [LocalSteps] * 2
    assert Plan.load(tmp_path / "plan.toml").strategy == "local"
    assert Facts.load(tmp_path / "facts.toml") == facts("local")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world_size": 3}, "it is of 3 workers, this job has 2; the first steps are measured again"),
        ({"model_digest": "abc"}, "it is of another model"),
        ({"torch_version": "1.0"}, "it is of torch 1.0"),
        (None, "it is of no use"),
    ],
)
def test_facts_of_another_job_are_named_kept_and_not_used(tmp_path: Path, caplog, changes: Any, words: str) -> None:
    path = tmp_path / "facts.toml"
    if changes is None:
        path.write_text("version = 99")
    else:
        facts("groups", **changes).save(path)
    before = path.read_text()

    def body(run: Run) -> Any:
        prepared(run)
        return type(run.driver), run._watch is not None

    with caplog.at_level(logging.INFO, logger="omnizen"):
        assert on_ranks(2, body, run_dir=tmp_path) == [(EveryStep, True)] * 2
    assert words in caplog.text
    assert (tmp_path / KEPT).read_text() == before


def test_facts_without_prices_leave_all_as_it_was(tmp_path: Path, caplog) -> None:
    path = facts().save(tmp_path / "facts.toml")
    found, said = driven(caplog, facts=path)
    assert [(kind, watch) for kind, _, watch, *_ in found] == [(EveryStep, True)] * 2
    assert "no [[prices]] yet, which `omnizen tune` measures" in said
    assert path.exists()
    found, said = driven(caplog, run_dir=tmp_path)
    assert found[0][2]
    assert not said


def test_uneven_shares_are_watched_over(caplog) -> None:
    dear = PRICES["groups"].model_copy(update={"samples": 90.0, "high": 90.0})
    found, said = driven(caplog, facts=facts(prices=[dear], links=[
        link.model_copy(update={"bandwidth_bytes_per_s": 1e8, "latency_s": 1e-5}) for link in facts().links
    ]))  # fmt: skip
    kind, plan, watch, lookout, _ = found[0]
    assert (kind, watch, lookout) == (EveryStep, False, True)
    assert plan.execution.batch_shares == [6, 2]
    assert "synchronous, uneven shares, 6/2 samples" in said
    kept = found[0][1]
    assert any("90.00 times the samples" in other.reason for other in kept.alternatives)


def reasons(plan: Plan, strategy: str) -> set[str]:
    return {other.reason for other in plan.alternatives if other.strategy == strategy}


def test_what_the_run_could_not_follow_is_not_chosen(caplog) -> None:
    known = facts("groups", "local")
    (_, plan, *_), _ = driven(caplog, facts=known, loader=[torch.zeros(4, 2)])[0]
    assert plan.strategy == "groups"
    assert reasons(plan, "local") == {
        "run.prepare() leaves this loader as it is, so every rank reads its own batches"
    }

    (_, plan, *_), _ = driven(caplog, facts=known, balance="auto")[0]
    assert plan.strategy == "sync"
    assert reasons(plan, "groups") == {"balance= asks for steps that all ranks take together"}

    (_, plan, *_), _ = driven(caplog, facts=known, balance=[0.5, 0.5])[0]
    assert "balance= says how batches are shared" in reasons(plan, "sync")

    def body(run: Run) -> Any:
        model = net()
        run.prepare(model, torch.optim.Adagrad(model.parameters()), facts=known, reduction="sum")
        return run.plan

    plan, _ = on_ranks(2, body)
    assert all("Adagrad has none" in reason for reason in reasons(plan, "groups"))
    assert all("reduction='mean' only" in reason for reason in reasons(plan, "local"))


def test_facts_that_cannot_be_read_or_are_not_needed_are_refused(tmp_path: Path) -> None:
    def body(run: Run) -> None:
        with pytest.raises(UserError, match="there is no file"):
            prepared(run, facts=tmp_path / "none.toml")
        with pytest.raises(UserError, match="facts= is what plan='auto' decides from"):
            prepared(run, facts=facts("groups"), plan="dense")

    on_ranks(2, body)


def test_without_prices_the_plan_says_what_was_not_weighed(monkeypatch, caplog) -> None:
    """Rank 1's own steps are told to be slower than those of rank 0."""
    everyone = [(0.05, 0.02, 4), (0.15, 0.08, 4)]
    monkeypatch.setattr(auto.Watch, "_everyone", lambda *_: everyone)

    def body(run: Run) -> Any:
        model = net()
        loader = DataLoader(TensorDataset(torch.zeros(40, 2)), batch_size=4)
        _, optimizer, loader = run.prepare(model, sgd(model), loader)
        for (x,) in loader:
            model(x).sum().backward()
            optimizer.step()
        return run.plan, run.facts

    with caplog.at_level(logging.INFO, logger="omnizen"):
        (plan, measured), _ = on_ranks(2, body)
    assert [d.samples_per_s for d in measured.devices] == [{"4": pytest.approx(80)}, {"4": pytest.approx(4 / 0.15)}]
    assert measured.step.compute_s == 0.15
    assert plan.strategy == plan.execution.strategy == "sync"
    assert plan.execution.batch_shares == [4, 4]
    shares = next(other for other in plan.alternatives if other.strategy == "sync")
    assert shares.batch_shares == [6, 2]
    assert shares.reason.endswith("balance='auto' gives ranks such shares")
    assert {other.strategy for other in plan.alternatives} == {"sync", "groups", "local"}
    assert (
        "times the samples/s, at a price in samples that nobody has measured (`omnizen tune` does)" in caplog.text
    )
