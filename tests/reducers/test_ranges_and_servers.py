"""Schemes that divide rows by range: a hot range has a hot owner, partitions spread it, full ranges go whole."""

import itertools

import pytest
import torch

from omnizen import catalog
from omnizen.errors import UserError
from omnizen.laws.reducer import busiest, measured_pattern
from omnizen.laws.trial import Trials
from omnizen.reducers.contribution import as_tensor
from omnizen.reducers.partitions import fit_partitions, search_partitions
from omnizen.reducers.ranges import bounds, profile, range_of, rows_by_range
from omnizen.types import Dense, Sparse, Sparsity

A_ROW, HEADERS = 4 + 4 * 3, 2 * 8


def rows_at(indices, num_rows=800):
    rows = torch.tensor(sorted(indices))
    return Sparse(rows, torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(len(rows))), num_rows)


def reduced(name, inputs, **settings):
    return Trials(catalog.reducer(name, **settings)).run("given", lambda rank: inputs[rank], len(inputs))


def test_the_owner_of_the_only_hot_range_receives_everything():
    n, k = 8, 50
    inputs = [rows_at(range(k)) for _ in range(n)]  # all in the first 100 of 800 rows
    trial = reduced("sparcml-split", inputs)
    hot = trial.ranks[0].metered
    assert hot.rx_bytes == (n - 1) * (k * A_ROW + 2 * HEADERS)
    assert hot.tx_bytes == (n - 1) * (k * A_ROW + 2 * HEADERS)
    others = trial.ranks[1].metered
    assert others.rx_bytes == k * A_ROW + (n - 1) * 2 * HEADERS
    said = catalog.reducer("sparcml-split").traffic(measured_pattern(inputs), n)
    assert (said.rx_bytes, said.tx_bytes) == (hot.rx_bytes, hot.tx_bytes)


def test_the_split_of_even_rows_meets_the_papers_bounds():
    """2 (P-1)/P k ... P k rows received, from full overlap to none."""
    n, k, num_rows = 4, 100, 800
    same = [rows_at(range(0, num_rows, 8)) for _ in range(n)]
    apart = [rows_at(range(rank, num_rows, 8)) for rank in range(n)]
    headers = 2 * (n - 1) * HEADERS
    assert busiest(reduced("sparcml-split", same)).rx_bytes == 2 * (n - 1) / n * k * A_ROW + headers
    assert busiest(reduced("sparcml-split", apart)).rx_bytes == (n - 1) / n * (k + n * k) * A_ROW + headers


def test_a_range_that_is_nearly_full_travels_whole():
    n, per_range = 4, 200
    inputs = [rows_at([*range(200), 300 + rank]) for rank in range(n)]
    as_rows, whole = reduced("sparcml-split", inputs), reduced("sparcml-split-dense", inputs)
    assert busiest(as_rows).rx_bytes - busiest(whole).rx_bytes == 0  # rank 0, whose range is full, gathers no more
    saved = as_rows.ranks[3].metered.rx_bytes - whole.ranks[3].metered.rx_bytes
    assert saved == per_range * 4  # the indices
    for name, trial in (("sparcml-split", as_rows), ("sparcml-split-dense", whole)):
        value = trial.ranks[3].result.value
        assert isinstance(value, Sparse), name
        torch.testing.assert_close(as_tensor(value), sum(as_tensor(x) for x in inputs) / n)


def test_when_all_ranges_are_whole_the_average_is_dense_and_else_zero_rows_are_left_out():
    full = [rows_at(range(800)) for _ in range(3)]
    assert isinstance(reduced("sparcml-split-dense", full).ranks[0].result.value, Dense)
    gaps = [rows_at([*range(390), 700]) for _ in range(2)]  # the first of two ranges lacks 10 rows
    value = reduced("sparcml-split-dense", gaps).ranks[1].result.value
    assert value.indices.tolist() == [*range(390), 700]


def test_more_partitions_spread_a_hot_range():
    n = 4
    inputs = [rows_at(range(100)) for _ in range(n)]
    received = [busiest(reduced("parameter-server", inputs, partitions=p)).rx_bytes for p in (4, 8, 32, 800)]
    assert received == sorted(received, reverse=True)
    assert received[0] == (n - 1) * (100 * A_ROW + 2 * HEADERS)
    even = 2 * (n - 1) / n * 100 * A_ROW + 2 * (n - 1) * HEADERS  # half of Parallax' in and out, 4 a w m (N-1)/N
    assert received[-1] == even


@pytest.mark.parametrize("bad", [0, -1, 2.5, "8", True])
def test_partitions_are_counted(bad):
    with pytest.raises(UserError, match="partitions must be a whole number from 1"):
        catalog.reducer("parameter-server", partitions=bad)


def test_partitions_are_fitted_as_in_parallax():
    def truth(p):
        return 0.3 + 20.0 / p + 0.2 * (p - 1)

    fit = fit_partitions({p: truth(p) for p in (1, 2, 4, 32)})
    assert (fit.fixed, fit.shared, fit.each) == pytest.approx((0.3, 20.0, 0.2))
    assert fit.partitions == 10  # the root of 20 / 0.2
    assert fit.seconds(7) == pytest.approx(truth(7))
    assert fit_partitions({4: 4.0, 8: 2.0, 16: 1.0}).partitions == 16  # never beyond what was tried
    with pytest.raises(UserError, match="three numbers of partitions or more, got 2"):
        fit_partitions({1: 1.0, 2: 2.0})
    with pytest.raises(UserError, match="begin with 1, got 0"):
        fit_partitions({0: 1.0, 2: 2.0, 4: 3.0})


@pytest.mark.parametrize(("best", "start", "tried"), [(10, 4, [4, 8, 16, 2]), (1, 8, [8, 16, 4, 2, 1])])
def test_the_search_doubles_and_then_halves(best, start, tried):
    asked = []

    def measure(p):
        asked.append(p)
        return 1.0 + best**2 / p + (p - 1)

    assert search_partitions(measure, start).partitions == best
    assert asked == tried


def test_the_search_finds_three_samples_even_where_the_first_is_best():
    assert search_partitions(lambda p: float(p), 1).partitions == 1
    with pytest.raises(UserError, match="at least least"):
        search_partitions(float, 1, least=2)


def test_ranges_are_even_and_cover_all_rows():
    for num_rows, parts in ((10, 4), (3, 5), (0, 2), (2**40, 7)):
        marks = bounds(num_rows, parts)
        assert (marks[0], marks[-1]) == (0, num_rows)
        sizes = [b - a for a, b in itertools.pairwise(marks)]
        assert max(sizes) - min(sizes) <= 1
    rows = torch.arange(10)
    assert range_of(rows, 10, 4).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert profile(rows[2:6], 10, 4).tolist() == [1, 2, 1, 0]


def test_without_a_profile_skewness_says_how_hot_one_range_is():
    pattern = Sparsity(8000, 1, 0.1, {1: 1.0, 8: 3.0}, skewness=4.0)
    own, union = rows_by_range(pattern, 8, 8)
    assert (own[0], sum(own), sum(union)) == pytest.approx((400, 800, 2400))
    assert union[0] == pytest.approx(1000 * (1 - 0.6**8))
