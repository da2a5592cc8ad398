"""Each numba twin gives what its reference gives, and the records say which one ran."""

import pytest
import torch

from omnizen.errors import UserError
from omnizen.kernels import spec
from omnizen.kernels.bits import pack_bits, unpack_bits
from omnizen.kernels.merge import merge
from omnizen.kernels.nonzero_rows import nonzero_rows
from omnizen.kernels.owner import cyclic_owner, hash_owner, mix32
from omnizen.kernels.partition import divide, hash_divide, partition
from omnizen.kernels.rows_at import rows_at

SIZES = [0, 1, 7, 1023, 4097]


def rows_of(num_rows, k, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randperm(num_rows, generator=rng)[:k].sort().values


def test_mix32_is_murmurs_finaliser():
    # fmix32 of MurmurHash3: 0 stays 0, and 1 gives 0x514e28b7.
    assert mix32(torch.tensor([0, 1])).tolist() == [0, 0x514E28B7]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 1000])
def test_hash_owner_twins_agree_also_beyond_32_bits(n):
    rows = torch.cat([torch.arange(4097), torch.arange(50) * 2**33 + 5, torch.tensor([2**31, 2**40])])
    expected = hash_owner.run("reference", rows, n, 123)
    assert torch.equal(hash_owner.run("cpu", rows, n, 123), expected)
    assert int(expected.min()) >= 0
    assert int(expected.max()) < n


def test_hash_owner_is_balanced_where_cyclic_is_not():
    rows = torch.arange(0, 80_000, 8)  # every row aliases with n = 8
    hashed = torch.bincount(hash_owner(rows, 8, 0), minlength=8)
    cyclic = torch.bincount(cyclic_owner(rows, 8, 0), minlength=8)
    assert hashed.max() < 1.1 * rows.numel() / 8
    assert cyclic.tolist() == [10_000, 0, 0, 0, 0, 0, 0, 0]


def test_hash_owner_depends_on_the_seed():
    rows = torch.arange(1000)
    assert not torch.equal(hash_owner(rows, 4, 1), hash_owner(rows, 4, 2))


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("n", [1, 3, 8])
def test_partition_twins_agree_and_are_stable(k, n):
    groups = torch.randint(0, n, (k,), generator=torch.Generator().manual_seed(k))
    order, counts = partition.run("reference", groups, n)
    for got, expected in zip(partition.run("cpu", groups, n), (order, counts), strict=True):
        assert torch.equal(got, expected)
    for part in order.split(counts.tolist()):
        assert (part[1:] > part[:-1]).all()


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("n", [1, 3, 8, 2**16 + 1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_dividing_by_hash_in_one_is_hashing_and_partitioning(k, n, dtype):
    rows = rows_of(10 * k, k, 2) + (2**33 if dtype == torch.int64 else 0)
    order, counts = partition.run("reference", hash_owner.run("reference", rows, n, 9), n)
    for impl in ("reference", "cpu"):
        divided = hash_divide.run(impl, rows, n, 9, dtype)
        assert torch.equal(divided.order, order)
        assert torch.equal(divided.rows, rows[order].to(dtype))
        assert torch.equal(divided.counts, counts)
    known = divide(rows, hash_owner(rows, n, 9), n)
    assert torch.equal(known.order, order)
    assert torch.equal(known.rows, rows[order])


@pytest.mark.parametrize("width", [0, 1, 5])
def test_rows_at_equals_indexing(width):
    values = torch.arange(70.0).view(7, 10)[:, ::2][:, :width]
    places = torch.tensor([6, 0, 0, 3])
    assert torch.equal(rows_at(values, places), values[places])
    assert torch.equal(rows_at(values, places[:0]), values[:0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [[0, 0], [5], [1, 0, 900, 3], [300] * 9])
def test_merge_twins_agree_bit_for_bit(dtype, lengths):
    indices = [rows_of(1000, k, i) for i, k in enumerate(lengths)]
    rng = torch.Generator().manual_seed(0)
    values = [torch.randn(k, 5, generator=rng).to(dtype) for k in lengths]
    rows, sums = merge.run("reference", indices, values)
    got_rows, got_sums = merge.run("cpu", [i.int() for i in indices], values)
    assert torch.equal(got_rows, rows)
    assert torch.equal(got_sums, sums)
    assert got_sums.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_merge_sums_non_contiguous_values_and_keeps_nan():
    values = torch.tensor([[1.0, float("nan"), 3.0], [4.0, 5.0, float("inf")]])
    rows, sums = merge.run("cpu", [torch.tensor([0, 2**40])] * 2, [values[:, ::2], values[:, ::2]])
    assert rows.tolist() == [0, 2**40]
    assert sums.tolist() == [[2.0, 6.0], [8.0, float("inf")]]


@pytest.mark.parametrize("length", SIZES)
def test_bits_twins_agree_and_invert(length):
    positions = rows_of(length, length // 3, 1)
    packed = pack_bits.run("reference", positions, length)
    assert packed.numel() == -(-length // 8)
    assert torch.equal(pack_bits.run("cpu", positions, length), packed)
    assert torch.equal(unpack_bits.run("reference", packed), positions)
    assert torch.equal(unpack_bits.run("cpu", packed), positions)


def test_bits_are_packed_lowest_first():
    assert pack_bits(torch.tensor([0, 2, 8]), 9).tolist() == [5, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nonzero_rows_twins_agree(dtype):
    matrix = torch.zeros(6, 3, dtype=dtype)
    matrix[0, 2], matrix[2, 0], matrix[3, 1], matrix[5, 0] = -1, float("nan"), -0.0, 1e-7
    assert nonzero_rows.run("reference", matrix).tolist() == [0, 2, 5]
    assert nonzero_rows.run("cpu", matrix).tolist() == [0, 2, 5]
    assert nonzero_rows.run("cpu", matrix.t()).tolist() == nonzero_rows.run("reference", matrix.t()).tolist()
    assert nonzero_rows.run("cpu", matrix[:0]).tolist() == []


def test_auto_follows_the_device():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [hash_owner.choose(device) for device in (cpu, gpu)] == ["cpu", "gpu"]
    assert [merge.choose(device) for device in (cpu, gpu)] == ["cpu", "reference"]


def test_the_choice_is_recorded_and_explicit():
    spec.forget_used()
    rows = torch.arange(4)
    hash_owner(rows, 2, 0)
    hash_owner.run("reference", rows, 2, 0)
    cyclic_owner(rows, 2, 0)
    assert spec.used() == {"hash_owner": {"cpu": 1, "reference": 1}, "cyclic_owner": {"reference": 1}}
    with pytest.raises(UserError, match=r"'partition' has no 'gpu' implementation; it has: reference, cpu"):
        partition.run("gpu", rows, 2)
    with pytest.raises(UserError, match="did you mean 'cpu'"):
        partition.run("cpus", rows, 2)
