"""Tensors of 2^31 elements and more: row numbers, places and sizes are right, shown without ever holding one.

A few rows near the far end of a tensor of 2^34 rows stand for it. What would need memory for every element is
refused in words, or its arithmetic is done on tensors without data.
"""

import math

import pytest
import torch

from omnizen import catalog
from omnizen.codecs.coo import index_dtype
from omnizen.codecs.ownership import PARTITIONS, Ownership
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.kernels.bits import pack_bits, unpack_bits
from omnizen.kernels.byte_code import byte_decode, byte_encode
from omnizen.kernels.merge import merge
from omnizen.kernels.owner import hash_owner
from omnizen.kernels.partition import hash_divide
from omnizen.kernels.rice import rice_decode, rice_encode
from omnizen.measure.gradient import PatternProbe
from omnizen.plan.search import make_plan
from omnizen.reducers.blocks import cut, put_back, touched
from omnizen.reducers.ranges import bounds, profile, range_of
from omnizen.reducers.segments import segments
from omnizen.types import Dense, Layout, Packed, Sparse, Sparsity, Step
from tests.plan.builders import job

NUM_ROWS, WIDTH = 2**34, 3
FAR = [0, 5, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 7, 2**33 + 12_345, NUM_ROWS - 2, NUM_ROWS - 1]
REFUSED = "too much; use|is too much"
BITS = {"bitmap", "hash-bitmap", "bloom-p0", "bloom-p1", "bloom-p2"}
"""Codecs with something for each row that could be there."""


def rows(indices, dtype=torch.float32, width=WIDTH):
    values = torch.arange(1.0, 1 + len(indices) * width).view(len(indices), width).to(dtype)
    return Sparse(torch.tensor(indices), values, NUM_ROWS)


INDEX_CODECS = [
    n for n in catalog.CODECS if catalog.codec(n).takes is Sparse and n not in ("common-magnitude", "sketch")
]


@pytest.mark.parametrize("name", INDEX_CODECS)
@pytest.mark.parametrize("indices", [FAR, FAR[-1:], list(range(2**33, 2**33 + 600))], ids=["far", "last", "run"])
def test_codecs_of_places_bring_back_far_rows_or_refuse(name, indices):
    codec, x = catalog.codec(name), rows(indices)
    if name in BITS:
        with pytest.raises(UserError, match=REFUSED):
            codec.encode(x, Step(0))
        return
    packed = codec.encode(x, Step(0))
    assert isinstance(packed, Packed)
    back = codec.decode(packed)
    assert back.num_rows == NUM_ROWS
    assert torch.equal(back.indices, x.indices)
    assert torch.equal(back.values, x.values)
    low, high = codec.nbytes(Sparsity(NUM_ROWS, WIDTH, len(indices) / NUM_ROWS))
    assert low <= packed.nbytes <= high


def test_one_magnitude_at_far_places_comes_back():
    x = Sparse(torch.tensor(FAR), torch.tensor([0.5, -0.5] * 5 + [0.5])[:, None], NUM_ROWS)
    codec = catalog.codec("common-magnitude")
    back = codec.decode(codec.encode(x, Step(0)))
    assert torch.equal(back.indices, x.indices)
    assert torch.equal(back.values, x.values)


SCHEMES = [name for name in catalog.schemes("row-sparse") if name != "dense"]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_average_far_rows_or_refuse(name, size):
    """Each rank has every other far row; ``dense`` alone needs the whole tensor, as its caller does."""
    reducer = catalog.reducer(name)

    def body(comm):
        mine = rows([row for place, row in enumerate(FAR) if (place + comm.rank) % 2])
        value = reducer.start(mine, reducer.init(mine), comm, Step(0, name="far")).wait().value
        assert isinstance(value, Sparse)
        return value.indices.tolist(), value.values, value.num_rows

    if name.endswith("bitmap"):
        with pytest.raises(UserError, match=REFUSED):
            run_ranks(size, body)
        return
    total = {row: torch.zeros(WIDTH) for row in FAR}
    for rank in range(size):
        given = rows([row for place, row in enumerate(FAR) if (place + rank) % 2])
        for row, values in zip(given.indices.tolist(), given.values, strict=True):
            total[row] = total[row] + values
    expected = torch.stack([total[row] / size for row in FAR])
    for indices, values, num_rows in run_ranks(size, body):
        assert (indices, num_rows) == (FAR, NUM_ROWS)
        assert torch.allclose(values, expected)


@pytest.mark.parametrize("name", SCHEMES)
def test_predicted_bytes_know_that_far_rows_have_wide_numbers(name):
    """As many rows of a tensor 2^14 times as long: four bytes more a row at most, beside bits for all rows."""
    reducer = catalog.reducer(name)
    near, far = (reducer.traffic(Sparsity(n, 64, 1000 / n, {1: 1.0, 8: 6.0}), 8) for n in (2**20, NUM_ROWS))
    assert math.isfinite(far.rx_bytes)
    assert near.rounds == far.rounds
    bits = 7 / 8 * NUM_ROWS / 8 if name.endswith("bitmap") else 0.0
    assert 0.9 * near.rx_bytes <= far.rx_bytes <= near.rx_bytes * (1 + 4 / 260) * 1.6 + bits


def test_row_numbers_travel_in_four_bytes_exactly_where_they_fit():
    assert [index_dtype(n) for n in (2**31, 2**31 + 1)] == [torch.int32, torch.int64]
    assert torch.tensor([2**31 - 1]).to(index_dtype(2**31)).item() == 2**31 - 1


@pytest.mark.parametrize("n", [3, 8, 1000])
def test_owners_of_far_rows_are_the_same_by_every_implementation_and_even(n):
    far = torch.cat([torch.tensor(FAR), torch.arange(2**33, 2**33 + 20_000), torch.arange(2**40, 2**40 + 20_000)])
    reference, cpu = (hash_owner.run(impl, far, n, 7) for impl in ("reference", "cpu"))
    assert torch.equal(reference, cpu)
    assert not torch.equal(reference[11:20_011], hash_owner(torch.arange(20_000), n, 7)), "the high half counts"
    counts = torch.bincount(reference, minlength=n)
    assert counts.max() < far.numel() / n + 6 * math.sqrt(far.numel() / n)
    divided = [hash_divide.run(impl, far, n, 7, torch.int64) for impl in ("reference", "cpu")]
    for one, other in zip(*divided, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_places_among_an_owners_rows_and_back(n):
    cyclic = Ownership("cyclic", NUM_ROWS, n)
    far = torch.tensor(FAR)
    for rank in range(n):
        mine = far[cyclic.owner(far) == rank]
        places = cyclic.position(mine, rank)
        assert torch.equal(cyclic.rows_at(places, rank), mine)
        assert all(0 <= place < cyclic.num_owned(rank) for place in places.tolist())
    assert sum(cyclic.num_owned(rank) for rank in range(n)) == NUM_ROWS
    for partition in PARTITIONS:
        divided = Ownership(partition, NUM_ROWS, n).divide(far, index_dtype(NUM_ROWS))
        assert sorted(divided.rows.tolist()) == FAR


@pytest.mark.parametrize("parts", [1, 3, 64, 1000])
def test_equal_ranges_hold_every_row_once(parts):
    begins = bounds(NUM_ROWS, parts)
    assert (begins[0], begins[-1]) == (0, NUM_ROWS)
    found = range_of(torch.tensor(FAR), NUM_ROWS, parts).tolist()
    assert all(begins[part] <= row < begins[part + 1] for part, row in zip(found, FAR, strict=True))
    assert profile(torch.tensor(FAR), NUM_ROWS, parts).tolist() == [found.count(part) for part in range(parts)]


@pytest.mark.parametrize("width", [1, 3, 300])
def test_blocks_of_far_rows_come_back(width):
    x = rows(FAR, width=width)
    ids, data, count = cut(x, 256)
    assert count == -(-NUM_ROWS // max(1, 256 // width))
    assert ids.tolist() == touched(x.indices, max(1, 256 // width)).tolist()
    back = put_back(ids, data, x, 256)
    assert torch.equal(back.indices, x.indices)
    assert torch.equal(back.values, x.values)


@pytest.mark.parametrize("impl", ["reference", "cpu"])
def test_sums_and_codes_of_far_numbers(impl):
    lists = [torch.tensor(FAR), torch.tensor(FAR[3:])]
    found, total = merge.run(impl, lists, [torch.ones(len(part), 2) for part in lists])
    assert found.tolist() == FAR
    assert total[:, 0].tolist() == [1.0] * 3 + [2.0] * 8
    numbers = torch.tensor([*FAR, 2**40, 2**62])
    for split in (1, 240, 255):
        assert torch.equal(byte_decode.run(impl, byte_encode.run(impl, numbers, split), split, 13), numbers)
    for bits in (29, 33, 40):
        low, high = rice_encode.run(impl, numbers[:12], bits)
        assert torch.equal(rice_decode.run(impl, low, high, bits, 12), numbers[:12])


def test_bits_beyond_2_to_the_31():
    """A quarter of a GiB of bits: the only thing here that is as long as it says."""
    length = 2**31 + 65
    places = torch.tensor([0, 2**31 - 1, 2**31, length - 1])
    packed = pack_bits.run("cpu", places, length)
    assert packed.numel() == -(-length // 8)
    assert torch.equal(unpack_bits.run("cpu", packed), places)


def test_flat_buffers_longer_than_2_to_the_33_are_cut_where_they_should_be():
    layout = Layout.of([("a", (2**20, 2**12)), ("b", (3,)), ("c", (2**16, 2**17))])
    assert [slot.offset for slot in layout.slots] == [0, 2**32, 2**32 + 3]
    assert layout.numel == 2**32 + 3 + 2**33
    flat = torch.empty(layout.numel, device="meta")
    parts = [part.values for part, _ in segments(Dense(flat, layout), Step(0))]
    assert [part.shape for part in parts] == [(2**20, 2**12), (3,), (2**16, 2**17)]
    assert [part.storage_offset() for part in parts] == [0, 2**32, 2**32 + 3]
    for size in (3, 7):
        pieces = flat.tensor_split(size)
        assert sum(piece.numel() for piece in pieces) == layout.numel
        assert pieces[-1].storage_offset() + pieces[-1].numel() == layout.numel


@pytest.mark.parametrize("name", [n for n in catalog.CODECS if catalog.codec(n).takes is Dense])
def test_sizes_of_long_dense_payloads_grow_as_the_payload_does(name):
    codec = catalog.codec(name)
    if codec.gives is not Packed:
        pytest.skip("it changes the values' type or kind only")
    near, far = (codec.nbytes(Sparsity(n, 1, 1.0))[1] for n in (2**20, 2**33))
    growth = 33 / 20 if name.startswith("curve") else 1.0  # bits of a rank among so many
    assert far == pytest.approx(growth * 2**13 * near, rel=0.02)
    assert far > 2**26


def test_patterns_are_measured_and_planned():
    def body(comm):
        probe = PatternProbe(comm)
        probe.observe("far", rows(FAR[comm.rank :]).indices, NUM_ROWS, WIDTH, 4)
        return probe.finish()[0]

    first, second = run_ranks(2, body)
    assert first == second
    assert first.density == 10.5 / NUM_ROWS
    assert first.densification["2"] == pytest.approx(11 / 10.5)
    assert sum(first.own_profile) == pytest.approx(10.5, abs=0.2)
    assert first.own_profile[-1] == 2
    tensor = make_plan(job(2, gradients=[first])).tensors[0]
    assert tensor.scheme != "dense"
    assert not tensor.scheme.endswith("bitmap")
    assert 0 < tensor.rx_bytes < 1000
