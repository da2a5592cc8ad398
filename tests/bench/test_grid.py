import numpy as np
import pytest

from omnizen.bench.grid import Point, by_links, full_grid
from omnizen.bench.patterns import contribution, indices


def test_the_grid_has_40_different_points_over_every_axis():
    grid = full_grid()
    assert len(set(grid)) == 40
    for axis in ("hosts", "rate_mbit", "density", "skew", "kind"):
        assert len({getattr(p, axis) for p in grid}) >= 2, axis
    assert sum(len(points) for points in by_links(grid).values()) == 40


@pytest.mark.parametrize("skew", ["uniform", "zipf"])
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
