"""What the planner picks, by formulas and after a trial, against the fastest scheme on simulated links."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.links import Links
from omnizen.comm.simulated import simulate_ranks
from omnizen.measure.facts import Facts
from omnizen.measure.gradient import PatternProbe
from omnizen.measure.links import measure_links, measure_meetings
from omnizen.plan.search import make_plan
from omnizen.plan.trial import refine
from omnizen.types import Sparse, Step

CLOSE = 1.05
SCHEMES = [name for name in catalog.schemes("row-sparse") if Sparse in catalog.reducer(name).takes]
NAME = "x"


def drawn(rows, kept, skew):
    """Make one rank's rows: uniform, skewed to small rows, or rows that alias with the ranks."""

    def contribution(rank, width):
        generator = torch.Generator().manual_seed(rank)
        if skew == "every fourth":
            rows_of = 4 * torch.randperm(rows // 4, generator=generator)[:kept]
        else:
            power = 1 if skew == "uniform" else 3
            rows_of = (rows * torch.rand(kept, generator=generator) ** power).long()
        rows_of = torch.unique(rows_of)
        return Sparse(rows_of, torch.randn(rows_of.numel(), width, generator=generator), rows)

    return contribution


GRID = [
    (size, width, kept, skew)
    for size in (2, 4, 8)
    for width, kept in ((1, 2_000), (32, 60), (32, 500))
    for skew in ("uniform", "skewed", "every fourth")
]


@pytest.mark.parametrize(("size", "width", "kept", "skew"), GRID)
def test_the_pick_is_the_fastest_or_close_to_it(size, width, kept, skew):
    links = Links.uniform(size, bandwidth_bytes_per_s=3e6, latency_s=2e-4)
    draw = drawn(10_000, kept, skew)

    def body(comm):
        mine = draw(comm.rank, width)
        probe = PatternProbe(comm)
        probe.observe(NAME, mine.indices, mine.num_rows, width, 4)
        facts = Facts(
            torch_version="2",
            world_size=size,
            links=measure_links(comm, 60.0, clock=lambda: comm.now_s),
            meetings=measure_meetings(comm, clock=lambda: comm.now_s),
            gradients=probe.finish(),
        )
        planned = make_plan(facts)
        tried = refine(planned, comm, {NAME: mine}, rounds=2, clock=lambda: comm.now_s)
        seconds = {}
        for scheme in SCHEMES:
            reducer = catalog.reducer(scheme)
            comm.barrier()
            began = comm.now_s
            reducer.start(mine, reducer.init(mine), comm, Step(0, name=NAME)).wait()
            seconds[scheme] = comm.now_s - began
        return planned.scheme(NAME), tried.scheme(NAME), seconds

    results = simulate_ranks(size, body, links=links).results
    by_formula, after_trial = results[0][:2]
    assert {r[1] for r in results} == {after_trial}
    took = {scheme: max(r[2][scheme] for r in results) for scheme in results[0][2]}
    fastest_s = min(took.values())
    assert took[by_formula] <= CLOSE * fastest_s, (by_formula, took)
    assert took[after_trial] <= CLOSE * fastest_s, (after_trial, took)
