"""How servers answer a crowd: measured by asking, and what formula and simulation make of it."""

import numpy as np
import pytest

from omnizen.comm.threads import run_ranks
from omnizen.measure.crowd import measure_crowd
from omnizen.measure.facts import CrowdFacts, Facts
from omnizen.plan.clusters import cluster_of
from omnizen.plan.efficiency import of_layout
from omnizen.plan.layouts import even
from omnizen.plan.strategies import crowded
from omnizen.simulate.cluster import Job
from omnizen.simulate.grouped import grouped
from tests.plan.builders import job

NBYTES = 4_000_000


def test_all_ranks_hear_of_the_slowest_one_and_one_rank_has_no_crowd() -> None:
    found = run_ranks(3, lambda comm: measure_crowd(comm, 1000, rounds=2))
    assert found[0] == found[1] == found[2]
    assert found[0].nbytes == 1000
    assert 0 < found[0].ask_s <= found[0].cycle_s
    assert run_ranks(1, lambda comm: measure_crowd(comm, 1000)) == [None]


def facts_with(cycle_s: float, ask_s: float = 0.01) -> Facts:
    told = job(4)
    devices = [d.model_copy(update={"samples_per_s": {"32": 1e6}}) for d in told.devices]
    crowd = CrowdFacts(nbytes=NBYTES // 4, ask_s=ask_s, cycle_s=cycle_s)
    return told.model_copy(update={"devices": devices, "crowd": crowd})


def simulated_s(facts: Facts) -> float:
    cluster = cluster_of(facts)
    whole = crowded(Job([], float(NBYTES)), cluster, facts.crowd)
    return 4 * grouped(whole, cluster, 4, np.full(4, 32.0), updates=400).update_s


def test_groups_that_only_push_and_pull_take_as_long_as_the_crowd_did() -> None:
    facts = facts_with(cycle_s=3.0)
    assert of_layout(facts, even(4, 4, 32), nbytes=NBYTES).cycle_s[0] == pytest.approx(3.0, rel=0.02)
    assert simulated_s(facts) == pytest.approx(3.0, rel=0.05)


def test_a_crowd_never_makes_links_faster_than_they_are() -> None:
    quick = facts_with(cycle_s=0.02)
    plain = quick.model_copy(update={"crowd": None})
    slower = of_layout(quick, even(4, 4, 32), nbytes=NBYTES).update_s
    assert slower >= of_layout(plain, even(4, 4, 32), nbytes=NBYTES).update_s
    share = crowded(Job([], float(NBYTES)), cluster_of(quick), quick.crowd).crowded_share
    assert share == 1.0


def test_one_group_asks_no_crowd() -> None:
    facts = facts_with(cycle_s=3.0)
    alone = of_layout(facts, even(4, 1, 32), nbytes=NBYTES)
    assert alone == of_layout(facts.model_copy(update={"crowd": None}), even(4, 1, 32), nbytes=NBYTES)
