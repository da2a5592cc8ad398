"""Whole steps by single schemes, beside the plan."""

import pytest

from omnizen.measure.facts import GradientFacts
from omnizen.plan.candidates import candidates
from omnizen.plan.cost import Rates, predict
from omnizen.plan.links import LinkModel
from omnizen.plan.plan import Rejected
from omnizen.plan.search import make_plan
from omnizen.types import Sparsity
from tests.plan.builders import MBIT, job


def by_name(facts):
    return {c.scheme: c for c in candidates(facts, make_plan(facts))}


def test_each_scheme_is_predicted_for_the_whole_step():
    facts = job(8, 100 * MBIT, per_s=1e9, code_rows_per_s=1e8, code_part_s=1e-4)
    found, plan = by_name(facts), make_plan(facts)
    assert list(found) == sorted(found, key=lambda name: found[name].step_s)
    assert {"dense", "zen-bitmap", "agsparse-packed", "dense-packed", "topk", "powersgd"} <= set(found)
    exact = [c.step_s for c in found.values() if not c.lossy]
    assert plan.prediction.step_s <= 1.01 * min(exact)  # nothing that could be chosen is better
    assert found["topk"].step_s < min(exact)  # all elements of the LSTM but one in 100 stay here
    assert found["topk"].rx_bytes < plan.prediction.rx_bytes_per_step
    assert found["powersgd"].rx_bytes < 0.2 * found["topk"].rx_bytes  # the table's rows shrink too


def test_what_has_no_measured_price_is_not_listed():
    found = by_name(job(8))
    assert not any(c.lossy for c in found.values())
    assert "agsparse-golomb" not in found


def test_a_slow_selector_makes_a_lossy_scheme_dear():
    quick, slow = (by_name(job(8, per_s=per_s))["topk"].step_s for per_s in (1e9, 1e6))
    assert slow - quick == pytest.approx(320_000 / 1e6, rel=0.01)  # the large one; the bias stays whole


def test_quantising_is_paid_for_every_rank_and_selecting_once():
    links, pattern = LinkModel.uniform(4, 1e12), Sparsity(1_000_000, 1, 1.0)
    cost = predict("qsgd", pattern, 4, links, Rates(quantise_elements_per_s=1e8))
    assert cost.cpu_s == pytest.approx((2 + 4 * 2.5) * 0.01)
    assert predict("topk", pattern, 4, links, Rates(select_elements_per_s=1e8)).cpu_s == pytest.approx(0.01)


def test_what_was_tried_shows_what_it_took():
    facts = job(8)
    plan = make_plan(facts)
    table = next(t for t in plan.tensors if t.kind == "row-sparse")
    other = table.rejected[0]
    tried = [Rejected(**(other.model_dump() | {"measured_s": 0.5})), *table.rejected[1:]]
    changed = table.model_copy(update={"measured_s": 0.3, "rejected": tried})
    plan = plan.model_copy(update={"tensors": [changed if t is table else t for t in plan.tensors]})
    found = {c.scheme: c for c in candidates(facts, plan)}
    assert found[other.scheme].tried_step_s == pytest.approx(plan.prediction.step_s + 0.2)
    assert found["dense"].tried_step_s is None


def test_there_is_nothing_to_say_of_one_worker_or_of_other_facts():
    assert candidates(job(1), make_plan(job(1))) == []
    other = job(8, gradients=[GradientFacts(name="another", kind="dense", shape=(10,))])
    assert candidates(other, make_plan(job(8))) == []
