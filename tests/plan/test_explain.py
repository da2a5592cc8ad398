import pytest

from omnizen.errors import UserError
from omnizen.plan.explain import explain
from omnizen.plan.search import make_plan
from tests.plan.builders import MBIT, independent, job


def test_everything_that_a_reader_asks_is_there():
    facts = job(8, slow={(2, 3): 50 * MBIT})
    plan = make_plan(facts)
    text = explain(plan, facts)
    table = next(t for t in plan.tensors if t.name == "table.weight")
    assert "8 workers, torch 2.13.0" in text
    assert "50 Mbit/s (slowest, rank 2 to 3) to 100 Mbit/s" in text
    assert "a worker touches 1100 of 50000 rows (2.20%), all together 6490" in text
    assert f"table.weight (row-sparse): {table.scheme}, as the cheapest by the formulas" in text
    assert "2 dense gradients: dense, in buckets that close at" in text
    for other in table.rejected:
        assert f"not {other.scheme}: " in text
        assert other.reason in text
    assert "250.0 ms of computing" in text


def test_what_is_unsure_is_said():
    facts = job(8, gradients=[independent(4, 0.02, shape=(50_000, 64), kind="row-sparse")], step=None)
    links = [link.model_copy(update={"estimated": link.source == 0}) for link in facts.links]
    noisy = facts.devices[0].model_copy(
        update={"samples_per_s": {"32": 100.0}, "samples_per_s_spread": {"32": 0.5}, "copy_bytes_per_s": None}
    )
    facts = facts.model_copy(update={"links": links, "devices": [noisy, *facts.devices[1:]]})
    text = explain(make_plan(facts), facts)
    for part in (
        "time of computing was not measured",
        "7 of 56 links were derived from others",
        "merging or copying were not measured",
        "rank 0 varied by 50%",
        "the union of 8 workers follows from that of 4",
        "predicted within 15%; a trial would tell",
        "rank 0: a processor (cpu) on host0, 1 core, 8 GiB, 100 samples/s at batch 32",
    ):
        assert part in text


def test_a_job_without_gradients_says_so():
    facts = job(2, gradients=[])
    assert "nothing to synchronise" in explain(make_plan(facts), facts)


def test_other_facts_are_refused():
    with pytest.raises(UserError, match="rests on facts"):
        explain(make_plan(job(2)), job(3))


def test_one_worker_has_nothing_to_try():
    facts = job(1)
    assert "a trial would tell" not in explain(make_plan(facts), facts)
