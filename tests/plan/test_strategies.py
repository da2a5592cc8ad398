"""The planner over strategies: what may be chosen, what is, and what the plan says of it."""

import pytest

from omnizen.errors import UserError
from omnizen.measure.facts import Facts, PriceFacts, StepFacts
from omnizen.plan.at_scale import assumptions, at_scale
from omnizen.plan.executions import enumerate_candidates
from omnizen.plan.explain import explain, in_brief
from omnizen.plan.lazy import LAZY
from omnizen.plan.plan import Plan
from omnizen.plan.search import make_plan
from omnizen.plan.strategies import plan_strategy
from tests.plan.builders import GRADIENTS, MBIT, job

LSTM = [GRADIENTS["lstm.weight"], GRADIENTS["lstm.bias"]]


def unlike(size=4, slow=3.0, *, bytes_per_s=1000 * MBIT, prices=(), gradients=LSTM):
    """Workers of which rank 0 is slower, on links that hardly matter."""
    facts = job(size, bytes_per_s, gradients=gradients, step=StepFacts(compute_s=0.25, backward_s=0.15, samples=32))
    devices = [
        d.model_copy(update={"samples_per_s": {"32": 32 / (0.25 * (slow if d.rank == 0 else 1))}})
        for d in facts.devices
    ]
    return facts.model_copy(update={"devices": devices, "prices": list(prices)})


def price(strategy, samples, low=None, high=None, **of):
    return PriceFacts(strategy=strategy, samples=samples, low=low or samples, high=high or samples, **of)


def test_without_prices_only_what_costs_nothing_is_chosen_and_the_rest_is_named():
    plan = plan_strategy(unlike())
    assert plan.strategy == "sync"
    assert plan.execution.price == 1
    shares = plan.execution.batch_shares
    assert sum(shares) == 4 * 32
    assert shares[0] == pytest.approx(shares[1] / 3, abs=1)
    # An even batch takes as long as the slow one; by speed all take 4 * 32 / (3 + 1/3) / 128 samples/s.
    assert plan.execution.relative == pytest.approx(0.4, abs=0.03)
    unmeasured = [e for e in plan.alternatives if e.price is None]
    assert {e.strategy for e in unmeasured} == {"groups", "local"}
    assert all("not chosen unmeasured" in e.reason for e in unmeasured)


def test_equal_machines_on_fast_links_train_as_ever():
    plan = plan_strategy(unlike(slow=1.0))
    assert plan.execution.title == "synchronous"
    assert plan.execution.relative == 1
    assert make_plan(unlike(slow=1.0)).tensors == plan.tensors


def test_groups_are_chosen_where_their_price_is_worth_it():
    def planned(samples):
        return plan_strategy(unlike(bytes_per_s=20 * MBIT, prices=[price("groups", samples, groups=4)]))

    cheap, dear = planned(0.7), planned(60.0)
    assert cheap.strategy == "groups"
    assert cheap.execution.groups == [[0], [1], [2], [3]]
    assert cheap.execution.relative < 1
    assert dear.strategy == "sync"
    assert any("needs 60.00 times the samples" in e.reason for e in dear.alternatives)


def test_local_steps_save_links_where_they_cost_little():
    facts = unlike(slow=1.0, bytes_per_s=20 * MBIT, prices=[price("local", 1.1, 1.0, 1.2, local_steps=16)])
    plan = plan_strategy(facts)
    assert plan.strategy == "local"
    assert plan.execution.local_steps == [16] * 4
    assert plan.execution.relative_low < plan.execution.relative < plan.execution.relative_high < 1
    assert "16 local steps" in explain(plan, facts)


def test_compression_is_weighed_only_when_allowed_and_priced():
    facts = unlike(slow=1.0, bytes_per_s=20 * MBIT, prices=[price("sync", 1.05, compression="qsgd")])
    assert not any(e.compression for e in plan_strategy(facts).alternatives)
    plan = plan_strategy(facts, compressions=["qsgd"])
    assert plan.execution.compression == "qsgd"
    assert plan.scheme("lstm.weight") == "qsgd"
    with pytest.raises(UserError, match="qsgd"):
        plan_strategy(facts, compressions=["qsdg"])


def test_strategies_whose_spreads_overlap_are_said_to_be_unsure():
    prices = [price("local", 1.1, 0.9, 1.4, local_steps=16), price("local", 1.12, 0.9, 1.4, local_steps=4)]
    facts = unlike(slow=1.0, bytes_per_s=200 * MBIT, prices=prices)
    plan = plan_strategy(facts)
    assert "more probes would tell" in explain(plan, facts)


def test_plan_files_old_and_new_are_read(tmp_path):
    facts = unlike(prices=[price("groups", 1.2, groups=2)])
    plan = plan_strategy(facts)
    assert Plan.load(plan.save(tmp_path / "plan.toml")) == plan
    old = "\n".join(line for line in make_plan(facts).to_toml().splitlines() if not line.startswith("alternatives"))
    assert "execution" not in old
    assert Plan.from_toml(old).strategy == "sync"
    assert Facts.from_toml(facts.to_toml()) == facts


def test_facts_without_prices_keep_their_digest():
    facts = unlike()
    assert "prices" not in facts.model_dump(exclude_defaults=True)
    assert facts.digest() != facts.model_copy(update={"prices": [price("groups", 1.2, groups=2)]}).digest()


@pytest.mark.parametrize(
    "wrong",
    [
        {"strategy": "sync", "samples": 1.0, "low": 1.0, "high": 1.0},
        {"strategy": "groups", "samples": 1.0, "low": 1.0, "high": 1.0},
        {"strategy": "groups", "groups": 2, "samples": 1.0, "low": 1.2, "high": 1.3},
    ],
)
def test_prices_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"price is 1|between low and high"):
        PriceFacts(**wrong)


def test_a_strategy_in_one_line():
    by_speed = plan_strategy(unlike())
    text = "synchronous, uneven shares, 13/39/38/38 samples, 2 dense gradients by dense; predicted "
    assert in_brief(by_speed).startswith(text)
    assert in_brief(by_speed).endswith("0.42 times the time of plain synchronous training to the same loss")
    groups = plan_strategy(unlike(bytes_per_s=20 * MBIT, prices=[price("groups", 0.7, groups=4, momentum=-0.2)]))
    assert in_brief(groups).startswith(
        "4 groups of ranks 0; 1; 2; 3, momentum -0.2, 2 dense gradients by dense; exp"
    )
    steps = plan_strategy(unlike(bytes_per_s=20 * MBIT, prices=[price("local", 1.0, local_steps=16)]))
    assert in_brief(steps).startswith("16 local steps by speed (7/19/19/19); expected ")


def test_groups_and_local_steps_leave_no_rows_at_owners():
    tables = [g.model_copy(update={"lazy": True}) if g.kind != "dense" else g for g in GRADIENTS.values()]
    plans = {c.strategy: c.plan for c in enumerate_candidates(
        unlike(gradients=tables), schemes=None, lazy=(), compressions=[]
    )}  # fmt: skip
    assert plans["sync"].scheme("table.weight") == LAZY
    assert {plans[name].scheme("table.weight") for name in ("groups", "local")}.isdisjoint({LAZY, "dense"})
    assert len({plan.facts_digest for plan in plans.values()}) == 1


def test_as_many_machines_as_measured_take_what_the_plan_predicts():
    facts = job(8)
    (sync, *_) = at_scale(facts, [8])
    assert sync.update_s == pytest.approx(make_plan(facts).prediction.step_s, rel=0.03)


def test_more_machines_give_more_and_less_of_what_they_could():
    facts = unlike(bytes_per_s=100 * MBIT, gradients=list(GRADIENTS.values()))
    found = at_scale(facts, [4, 16, 64])
    sync = [f for f in found if f.title == "synchronous, shares by speed"]
    assert [f.workers for f in sync] == [4, 16, 64]
    assert sync[0].efficiency > sync[1].efficiency > sync[2].efficiency > 0
    assert all(f.efficiency <= 1.01 for f in found)
    assert {f.title for f in found} >= {"synchronous", "16 local steps, by speed", "groups of 8"}
    assert all(f.price is None for f in found if "sync" not in f.title)
    assert any("as if they were independent" in line for line in assumptions(facts))
    for wrong in ([1], [4097]):
        with pytest.raises(UserError, match="4096"):
            at_scale(facts, wrong)
    with pytest.raises(UserError, match="time of a step"):
        at_scale(facts.model_copy(update={"step": None}), [8])
