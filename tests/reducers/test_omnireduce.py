"""OmniReduce: which blocks travel, in which rounds, and what that costs by the papers' formulas."""

import pytest
import torch

from omnizen import catalog
from omnizen.errors import UserError
from omnizen.laws.reducer import busiest, measured_pattern, zipf_contributions
from omnizen.laws.trial import Trials
from omnizen.reducers.blocks import cut, put_back, rows_in_block, share_beyond, touched_blocks
from omnizen.reducers.contribution import as_tensor
from omnizen.types import Dense, Sparse, Sparsity

BOTH = ("omnireduce", "omnireduce-streaming")


def in_blocks(blocks, rank, *, block=8, count=32):
    """Return a dense tensor whose given blocks are full."""
    whole = torch.zeros(count, block)
    whole[blocks] = torch.randn(len(blocks), block, generator=torch.Generator().manual_seed(rank))
    return Dense(whole.view(-1))


def reduced(name, inputs, **settings):
    return Trials(catalog.reducer(name, **settings)).run("given", lambda rank: inputs[rank], len(inputs))


def test_cutting_and_putting_back_change_nothing():
    rng = torch.Generator().manual_seed(0)
    for x in (
        Dense(torch.randn(5, 7, generator=rng)),
        Dense(torch.zeros(3)),
        Sparse(torch.tensor([0, 3, 4, 9]), torch.randn(4, 3, generator=rng), 11),
        Sparse(torch.tensor([], dtype=torch.int64), torch.zeros(0, 3), 11),
        Sparse(torch.tensor([2]), torch.randn(1, 300, generator=rng), 4),
    ):
        ids, data, count = cut(x, 6)
        assert bool((data != 0).any(1).all())
        assert ids.numel() <= count
        back = put_back(ids, data, x, 6)
        assert type(back) is type(x)
        assert torch.equal(as_tensor(back), as_tensor(x))
    assert (rows_in_block(3, 6), rows_in_block(300, 6)) == (2, 1)


@pytest.mark.parametrize("name", BOTH)
def test_dense_and_sparse_contributions_give_the_same_average(name):
    inputs = [Sparse(torch.tensor([1, 2 + r, 30]), torch.randn(3, 4), 50) for r in range(3)]
    expected = sum(as_tensor(x) for x in inputs) / 3
    for given in (inputs, [Dense(x.to_dense()) for x in inputs]):
        value = reduced(name, given, block=8).ranks[1].result.value
        torch.testing.assert_close(as_tensor(value), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", BOTH)
def test_rows_of_a_block_that_nobody_has_and_sums_of_zero_do_not_come_back(name):
    one = Sparse(torch.tensor([0, 3]), torch.tensor([[1.0], [1.0]]), 8)
    other = Sparse(torch.tensor([0, 3]), torch.tensor([[-1.0], [float("nan")]]), 8)
    value = reduced(name, [one, other], block=4).ranks[0].result.value
    assert value.indices.tolist() == [3]


def test_the_block_form_moves_a_ring_of_the_union_and_a_bitmap():
    n, block, count = 4, 8, 32
    inputs = [in_blocks([0, 1, 2, 3, 4 + r], r) for r in range(n)]  # a union of 8 blocks
    seen = busiest(reduced("omnireduce", inputs, block=block))
    ring = 2 * (n - 1) / n * 8 * block * 4
    assert seen.rx_bytes == ring + (n - 1) * (count // 8 + 2 * 8)
    assert seen.rounds == n + 2 * (n - 1)


def test_few_blocks_are_told_as_numbers():
    n = 2
    inputs = [in_blocks([7], r, count=4096) for r in range(n)]
    seen = busiest(reduced("omnireduce", inputs, block=8))
    assert seen.rx_bytes == 8 * 4 + (n - 1) * (4 + 2 * 8)


def test_in_a_lane_only_non_zero_blocks_travel_and_silent_workers_send_nothing():
    """One lane an aggregator, two workers. Lane 0 (even blocks): worker 0 has 4 and 10, worker 1 has 4."""
    inputs = [in_blocks([4, 10], 0), in_blocks([4], 1)]
    trial = reduced("omnireduce-streaming", inputs, block=8, lanes=1)
    a_block, headers = 8 * 4 + 4, 2 * 8
    # Worker 1 sends its first blocks (0 to rank 0, 1 stays), then block 4; rank 0 returns blocks 0, 4 and 10.
    assert trial.ranks[1].metered.tx_bytes == 2 * a_block + 1 * a_block + 6 * headers
    assert trial.ranks[0].metered.tx_bytes == 1 * a_block + 3 * a_block + 6 * headers
    assert trial.ranks[0].metered.rounds == 3 * 2 * 2


def test_streaming_is_predicted_for_even_blocks():
    """Blocks in every second place: each worker's own and the union are known exactly."""
    n, count = 4, 1024
    inputs = [in_blocks(list(range(0, count, 2)), r, block=256, count=count) for r in range(n)]
    pattern = Sparsity(count * 256, 1, 1.0, blocks={256: (0.5, 0.5)})
    said, seen = catalog.reducer("omnireduce-streaming").traffic(pattern, n), None
    seen = busiest(reduced("omnireduce-streaming", inputs))
    assert said.tx_bytes == pytest.approx(seen.tx_bytes, rel=0.35)  # even blocks lie in half of the lanes
    scattered = [
        in_blocks(
            torch.randperm(count, generator=torch.Generator().manual_seed(1))[:512].tolist(),
            r,
            block=256,
            count=count,
        )
        for r in range(n)
    ]
    seen = busiest(reduced("omnireduce-streaming", scattered))
    assert said.tx_bytes == pytest.approx(seen.tx_bytes, rel=0.03)
    assert said.rx_bytes == pytest.approx(seen.rx_bytes, rel=0.03)


def test_runs_of_rows_cost_less_than_scattered_ones():
    n, rows = 4, 4096
    runs = [Sparse(torch.arange(64) + 64 * (r % 2), torch.randn(64, 4), rows) for r in range(n)]
    scattered = [Sparse(torch.arange(0, rows, 64) + r, torch.randn(64, 4), rows) for r in range(n)]
    for name in BOTH:
        assert 4 * busiest(reduced(name, runs)).rx_bytes < busiest(reduced(name, scattered)).rx_bytes, name
        for inputs in (runs, scattered):
            said = catalog.reducer(name).traffic(measured_pattern(inputs), n)
            # Neighbouring blocks lie in different lanes, which few blocks do only by chance.
            off = 0.2 if name == "omnireduce-streaming" else 0.0
            assert said.rx_bytes == pytest.approx(busiest(reduced(name, inputs)).rx_bytes, rel=off), name


def test_streaming_is_predicted_where_the_first_burst_carries_what_everybody_has():
    inputs = zipf_contributions(Sparse, 4, num_rows=20_000, rows=2_000, width=64)
    said = catalog.reducer("omnireduce-streaming").traffic(measured_pattern(inputs), 4)
    seen = busiest(reduced("omnireduce-streaming", inputs))
    assert said.rx_bytes == pytest.approx(seen.rx_bytes, rel=0.03)


def test_blocks_beyond_a_place_follow_the_profile():
    assert share_beyond((), 100, 5, 0.25) == 0.75
    assert share_beyond((10.0, 10.0, 0.0, 0.0), 40, 1, 0.25) == 0.5
    assert share_beyond((10.0, 10.0, 0.0, 0.0), 40, 1, 0.375) == 0.25
    assert share_beyond((10.0, 5.0), 20, 2, 0.5) == pytest.approx(0.75 / 1.75)
    assert share_beyond((0.0, 0.0), 20, 2, 0.5) == 0.5


def test_blocks_that_were_not_measured_are_taken_to_be_drawn_independently():
    pattern = Sparsity(1000, 1, 0.1, {1: 1.0, 4: 3.0})
    own, union = touched_blocks(pattern, 10, 4)
    assert own == pytest.approx(100 * (1 - 0.9**10))
    assert union == pytest.approx(100 * (1 - 0.7**10))


@pytest.mark.parametrize("settings", [{"block": 0}, {"block": 2.5}, {"block": True}])
@pytest.mark.parametrize("name", BOTH)
def test_blocks_are_counted(name, settings):
    with pytest.raises(UserError, match="block must be a whole number from 1"):
        catalog.reducer(name, **settings)


def test_lanes_are_counted():
    with pytest.raises(UserError, match="lanes must be a whole number from 1"):
        catalog.reducer("omnireduce-streaming", lanes=0)
