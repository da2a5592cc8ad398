import numpy as np
import pytest

from omnizen.bench.grid import Point, by_links, full_grid
from omnizen.bench.patterns import contribution, indices


def test_the_grid_has_144_different_points_over_every_axis():
    grid = full_grid()
    assert len(set(grid)) == 144
    assert {p.hosts for p in grid} == {2, 4, 8, 16}
    assert {p.rate_mbit for p in grid} == {50.0, 100.0, 1000.0}
    assert (min(p.density for p in grid), max(p.density for p in grid)) == (0.001, 0.3)
    for points in by_links(grid).values():
        assert len({(p.density, p.skew) for p in points}) == len(points) == 12
        assert {p.kind for p in points} == {"row-sparse", "element-sparse"}
    for kind in ("row-sparse", "element-sparse"):
        mine = {(p.density, p.skew, p.hosts) for p in grid if p.kind == kind}
        assert len(mine) == 4 * 3 * 4, "each kind meets every density, skew and number of workers"


def test_the_grid_can_be_measured_in_parts():
    part = full_grid(hosts=(2, 16), rates_mbit=(50.0,))
    assert set(part) < set(full_grid())
    assert {(p.hosts, p.rate_mbit) for p in part} == {(2, 50.0), (16, 50.0)}
    assert len(part) == 24


@pytest.mark.parametrize("width", [1, 64])
def test_blocky_rows_come_in_runs(width):
    point = Point(hosts=4, rate_mbit=100, rows=200_000 // width, width=width, density=0.05, skew="blocky")
    rows = indices(point, 0, seed=1)
    run = 2048 // width
    assert len(np.unique(rows)) == len(rows) == round(0.05 * point.rows)
    gaps = int((np.diff(rows) != 1).sum())
    assert gaps <= len(rows) // run + 1
    assert (rows != indices(point, 1, seed=1)).any()
    assert rows.max() < point.rows
    assert len(indices(point.model_copy(update={"density": 1.0}), 0, seed=1)) == point.rows
    few = point.model_copy(update={"rows": 5, "density": 0.5})
    assert len(np.unique(indices(few, 0, seed=1))) == 2


@pytest.mark.parametrize("skew", ["uniform", "zipf", "blocky"])
def test_patterns_keep_the_stated_density_and_repeat(skew):
    point = Point(hosts=4, rate_mbit=100, rows=5000, width=3, density=0.1, skew=skew)
    rows = indices(point, 1, seed=7)
    assert len(np.unique(rows)) == 500
    assert (np.diff(rows) > 0).all()
    assert (rows == indices(point, 1, seed=7)).all()
    assert (rows != indices(point, 2, seed=7)).any()
    made = contribution(point, 1, seed=7)
    assert made.density == pytest.approx(0.1)
    assert made.values.shape == (500, 3)


def test_zipf_workers_share_more_rows_than_uniform_ones():
    def union(skew):
        point = Point(hosts=8, rate_mbit=100, rows=50_000, width=64, density=0.1, skew=skew)
        return len(np.unique(np.concatenate([indices(point, rank, seed=0) for rank in range(8)])))

    assert union("zipf") < 0.85 * union("uniform")
