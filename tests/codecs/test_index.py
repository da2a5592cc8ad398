"""Index codecs: every pattern comes back, in the bits that theory gives."""

import math

import pytest
import torch

from omnizen import catalog
from omnizen.codecs.index.delta_varint import best_split, code_bytes
from omnizen.codecs.index.golomb import remainder_bits
from omnizen.errors import UserError
from omnizen.types import Packed, Sparse, Sparsity, Step

CODERS = ("golomb", "delta-varint", "run-length")


def random_rows(num_rows, density, seed=0, width=1):
    rng = torch.Generator().manual_seed(seed)
    indices = (torch.rand(num_rows, generator=rng) < density).nonzero().view(-1)
    return Sparse(indices, torch.randn(indices.numel(), width, generator=rng), num_rows)


def index_bits(codec, rows):
    packed = codec.encode(rows, Step(0))
    return 8 * sum(stream.numel() * stream.element_size() for stream in packed.streams[1:]) / rows.indices.numel()


PATTERNS = {
    "nothing of nothing": ([], 0),
    "nothing": ([], 7),
    "all": (range(300), 300),
    "only row 0": ([0], 1),
    "first": ([0], 2**40),
    "last": ([2**40 - 1], 2**40),
    "ends": ([0, 2**40 - 1], 2**40),
    "beyond 32 bits": ([5, 2**31 - 1, 2**31, 2**33 + 1, 2**33 + 2], 2**34),
    "every second": (range(0, 1000, 2), 1000),
    "one missing": ([i for i in range(500) if i != 250], 500),
    "blocks": ([64 * b + i for b in range(0, 100, 7) for i in range(64)], 6400),
}


@pytest.mark.parametrize("name", CODERS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_comes_back_within_nbytes(name, pattern):
    indices, num_rows = PATTERNS[pattern]
    rows = Sparse(torch.tensor(list(indices), dtype=torch.int64), torch.ones(len(indices), 2), num_rows)
    codec = catalog.codec(name)
    packed = codec.encode(rows, Step(0))
    back = codec.decode(packed)
    assert torch.equal(back.indices, rows.indices)
    assert back.indices.dtype == torch.int64
    assert back.num_rows == num_rows
    low, high = codec.nbytes(Sparsity(num_rows, 2, len(indices) / num_rows if num_rows else 0.0))
    assert low <= packed.nbytes <= high


@pytest.mark.parametrize(
    ("density", "bits", "least"), [(0.1, 4.76, 4.69), (0.01, 8.11, 8.08), (0.001, 11.50, 11.41)]
)
def test_golomb_takes_the_bits_of_the_formula_and_no_other_parameter_is_better(density, bits, least):
    num_rows = 3_000_000
    rows = random_rows(num_rows, density)
    measured = index_bits(catalog.codec("golomb"), rows)
    noise = 4 / rows.indices.numel() ** 0.5  # two standard errors of the mean quotient
    assert measured == pytest.approx(bits, abs=0.01 + noise)
    entropy = -math.log2(density) - (1 - density) / density * math.log2(1 - density)
    assert entropy == pytest.approx(least, abs=0.01)
    assert measured > entropy - noise
    chosen = remainder_bits(rows.indices.numel(), num_rows)
    assert chosen == {0.1: 3, 0.01: 6, 0.001: 9}[density]
    gaps = torch.diff(rows.indices, prepend=torch.tensor([-1])) - 1
    cost = {b: (b + 1) + float((gaps >> b).double().mean()) for b in range(chosen - 1, chosen + 2)}
    assert min(cost, key=cost.get) == chosen
    assert measured == pytest.approx(cost[chosen], abs=0.01)


@pytest.mark.parametrize(("density", "most"), [(0.1, 8.01), (0.01, 8.65), (0.001, 14.5)])
def test_varints_take_fewer_bits_than_seven_a_byte(density, most):
    rows = random_rows(3_000_000, density)
    gaps = torch.diff(rows.indices, prepend=torch.tensor([-1])) - 1
    sevens = 8 * float((1 + (gaps >= 2**7).double() + (gaps >= 2**14).double()).mean())
    measured = index_bits(catalog.codec("delta-varint"), rows)
    assert measured <= most
    assert measured <= sevens


def test_the_split_of_the_first_byte_is_the_best():
    for count, num_rows in ((1000, 10_000), (10_000, 1_000_000), (1000, 1_000_000)):
        gaps = torch.diff(random_rows(num_rows, count / num_rows).indices, prepend=torch.tensor([-1])) - 1

        def mean_bytes(split, gaps=gaps):
            return 1 + float(((gaps >= split).double() + 2 * (gaps >= split + (255 - split) * 256)).mean())

        best = min(mean_bytes(split) for split in range(1, 256))
        assert mean_bytes(best_split(count, num_rows)) <= best + 0.02


def test_byte_counts_are_bounded_for_every_pattern():
    low, high = code_bytes(10, 0, 253)
    assert (low, high) == (10, 10)
    assert code_bytes(10, 10**6, 253)[1] >= 10 + 10 + 3


def test_runs_take_bytes_a_block_and_not_a_row():
    indices = (torch.arange(0, 100_000, 1000)[:, None] + torch.arange(200)).view(-1)
    rows = Sparse(indices, torch.ones(indices.numel(), 1), 100_000)
    assert catalog.codec("run-length").encode(rows, Step(0)).streams[1].numel() <= 3 * 100
    assert index_bits(catalog.codec("golomb"), rows) > 10 * index_bits(catalog.codec("run-length"), rows)


@pytest.mark.parametrize("name", CODERS)
@pytest.mark.parametrize("indices", [[3, 3], [4, 2], [0, 10], [-1, 2], [2, 2**62, 5]])
def test_rows_that_do_not_ascend_within_the_tensor_are_refused(name, indices):
    with pytest.raises(UserError, match=r"must ascend strictly within \[0, 10\)"):
        catalog.codec(name).encode(Sparse(torch.tensor(indices), torch.ones(len(indices), 1), 10), Step(0))


@pytest.mark.parametrize("name", CODERS)
def test_damaged_payloads_are_refused_and_never_read_as_other_rows(name):
    codec = catalog.codec(name)
    packed = codec.encode(random_rows(1000, 0.1), Step(0))
    values, *places = packed.streams
    shorter = Packed((values, *(stream[:-1] for stream in places)), packed.meta, packed.codec)
    fewer = Packed((values[:-9], *places), packed.meta, packed.codec)
    smaller = Packed(packed.streams, (10, *packed.meta[1:]), packed.codec)
    for damaged in (shorter, fewer, smaller):
        with pytest.raises(UserError, match="damaged payload"):
            codec.decode(damaged)


def test_values_travel_untouched_as_the_first_stream():
    rows = random_rows(100, 0.3, width=3)
    for name in CODERS:
        assert torch.equal(catalog.codec(name).encode(rows, Step(0)).streams[0], rows.values)
