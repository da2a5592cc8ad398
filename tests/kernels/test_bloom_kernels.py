"""Bloom filters: twins agree, no row that is there is missed, and the choice covers every bit."""

import pytest
import torch

from omnizen.kernels.bits import pack_bits
from omnizen.kernels.bloom import bloom_cover, bloom_places, bloom_query


def rows_of(num_rows, k, seed=0):
    return torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))[:k].sort().values


@pytest.mark.parametrize("hashes", [1, 7])
@pytest.mark.parametrize("num_bits", [1, 64, 2**31 - 1])
def test_places_twins_agree(num_bits, hashes):
    rows = torch.cat([torch.arange(2000), torch.tensor([2**31, 2**32 - 1])])
    places = bloom_places.run("reference", rows, num_bits, hashes, 99)
    assert torch.equal(bloom_places.run("cpu", rows, num_bits, hashes, 99), places)
    assert int(places.min()) >= 0
    assert int(places.max()) < num_bits
    assert bloom_places.run("cpu", rows[:0], num_bits, hashes, 99).shape == (0, hashes)


def test_places_are_spread_evenly_and_depend_on_the_seed():
    rows = torch.arange(20_000)
    counts = torch.bincount(bloom_places(rows, 16, 5, 1).view(-1), minlength=16)
    assert counts.min() > 0.95 * 100_000 / 16
    assert counts.max() < 1.05 * 100_000 / 16
    assert not torch.equal(bloom_places(rows, 16, 5, 1), bloom_places(rows, 16, 5, 2))


@pytest.mark.parametrize("k", [0, 1, 500])
def test_a_query_finds_every_row_and_few_others(k):
    num_rows, hashes = 60_000, 8
    rows = rows_of(num_rows, k)
    num_bits = max(256, round(hashes * k / 0.6931))
    packed = pack_bits(bloom_places(rows, num_bits, hashes, 5).view(-1), num_bits)
    found = bloom_query.run("reference", packed, num_bits, hashes, 5, num_rows)
    assert torch.equal(bloom_query.run("cpu", packed, num_bits, hashes, 5, num_rows), found)
    assert torch.isin(rows, found).all()
    full = sum(int(byte).bit_count() for byte in packed) / num_bits
    wrong = (num_rows - k) * full**hashes  # the share of set bits, once for each hash
    assert abs(found.numel() - k - wrong) <= 5 * wrong**0.5


def conflict_sets(places):
    return {bit: set((places == bit).any(1).nonzero().view(-1).tolist()) for bit in places.unique().tolist()}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("p", "count"), [(60, 50), (60, 60), (60, 3), (1, 1), (5, 0)])
def test_cover_twins_agree_and_choose_whom_the_sets_prove(p, count, seed):
    places = bloom_places(rows_of(10_000, p, seed), 2 * p, 3, seed)
    rank = torch.randperm(p, generator=torch.Generator().manual_seed(seed))
    chosen = bloom_cover.run("reference", places, rank, count)
    assert torch.equal(bloom_cover.run("cpu", places, rank, count), chosen)
    assert chosen.numel() == count
    assert (chosen[1:] > chosen[:-1]).all()
    sets = conflict_sets(places)
    alone = {row for rows in sets.values() if len(rows) == 1 for row in rows}
    if count >= len(sets):
        assert alone <= set(chosen.tolist())
        assert all(rows & set(chosen.tolist()) for rows in sets.values())
    if count == 50:
        assert alone
        assert len(alone - set(chosen.tolist())) == 0


def test_cover_by_hand():
    # Bit 9 is set by row 1 alone; bits 7 and 8 by rows 0 and 2, of whom 2 has the lower rank.
    places = torch.tensor([[7, 8], [9, 7], [7, 8]])
    assert bloom_cover(places, torch.tensor([1, 2, 0]), 2).tolist() == [1, 2]
    assert bloom_cover(places, torch.tensor([1, 2, 0]), 1).tolist() == [1]
