import pytest
import torch

from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.measure.gradient import PatternProbe, classify


def probe(sets, num_rows, *, width=4, steps=1):
    """Let each rank observe its set and return the facts, which must be equal on all ranks."""

    def body(comm):
        watching = PatternProbe(comm)
        for _ in range(steps):
            watching.observe("table", torch.tensor(sets[comm.rank], dtype=torch.int64), num_rows, width, 4)
        return watching.finish()

    results = run_ranks(len(sets), body)
    assert all(r == results[0] for r in results)
    return results[0][0]


def test_disjoint_sets():
    facts = probe([[0, 1], [2, 3], [4, 5], [6, 7]], num_rows=100)
    assert (facts.kind, facts.shape, facts.density, facts.overlap) == ("row-sparse", (100, 4), 0.02, 0.0)
    assert facts.densification == {"1": 1.0, "2": 2.0, "4": 4.0}
    assert facts.skewness == 4.0, "all rows lie in the first quarter"


def test_where_rows_and_blocks_lie():
    facts = probe([[0, 1, 64, 70], [0, 2, 65, 639]], num_rows=640)
    assert (facts.own_profile[0], facts.own_profile[6], facts.own_profile[63]) == (2.0, 1.0, 0.5)
    assert facts.union_profile[0] == 3.0
    assert (sum(facts.own_profile), sum(facts.union_profile)) == (4.0, 7.0)
    assert facts.blocks == {"256": (2.5 / 10, 3 / 10)}, "64 rows of 4 elements make a block"


def test_owners_of_rows_are_uneven_by_the_busiest_ranks_share():
    facts = probe([[0, 2, 4, 6], [0, 2]], num_rows=10)
    # By row number rank 0 owns all of them: it receives 2 and sends the sum of 4, rank 1 sends 2 and receives 4.
    even = (3 + 4) / 2
    assert facts.imbalance["cyclic"].rx == facts.imbalance["cyclic"].tx == pytest.approx(4 / even)
    assert 0.5 < facts.imbalance["hash"].rx < 1.2
    assert facts.sparsity().imbalance["cyclic"].tx == facts.imbalance["cyclic"].tx


def test_equal_sets():
    facts = probe([[5, 25, 45, 65, 85]] * 5, num_rows=100, steps=2)
    assert facts.densification == {"1": 1.0, "2": 1.0, "4": 1.0, "5": 1.0}
    assert (facts.overlap, facts.skewness, facts.density) == (1.0, 1.0, 0.05)


def test_known_partial_overlap_of_unequal_sets():
    facts = probe([[0, 1, 2, 3], [3, 4]], num_rows=40)
    assert facts.density == pytest.approx(3 / 40)
    assert facts.densification["2"] == pytest.approx(5 / 3)
    assert facts.overlap == pytest.approx(1 / 2)


def test_random_sets_follow_the_law_of_independent_supports():
    generator = torch.Generator().manual_seed(1)
    sets = [torch.randperm(20_000, generator=generator)[:2_000].tolist() for _ in range(8)]
    facts = probe(sets, num_rows=20_000)
    for k in (2, 4, 8):
        assert facts.densification[str(k)] * 0.1 == pytest.approx(1 - 0.9**k, rel=0.02)
    assert facts.overlap == pytest.approx(0.1, rel=0.05)
    assert facts.skewness == pytest.approx(1.0, abs=0.2)


def test_of_large_sets_a_share_tells_the_same():
    generator = torch.Generator().manual_seed(2)
    sets = [torch.randperm(2_000_000, generator=generator)[: 300_000 + 1000 * r] for r in range(4)]
    sets[3] = sets[2]

    def body(comm):
        watching = PatternProbe(comm)
        watching.observe("x", sets[comm.rank], 2_000_000, 1, 4)
        return watching.finish()[0]

    facts = run_ranks(4, body)[0]
    counts = [s.numel() for s in sets]
    union = torch.cat(sets).unique().numel()
    assert facts.density == pytest.approx(sum(counts) / 4 / 2_000_000), "counted, not sampled"
    assert facts.densification["4"] == pytest.approx(union / (sum(counts) / 4), rel=0.01)
    assert facts.overlap == pytest.approx((5 * 0.151 + 1) / 6, rel=0.02)
    assert facts.skewness == pytest.approx(1.0, abs=0.05)
    assert sum(facts.own_profile) == pytest.approx(sum(counts) / 4), "counted, not sampled"
    assert sum(facts.union_profile) == pytest.approx(union, rel=0.01)
    assert facts.blocks["256"] == (1.0, pytest.approx(1.0, abs=0.03))


def test_repeats_and_order_do_not_count():
    assert probe([[7, 3, 7, 3, 3], [3]], num_rows=10) == probe([[3, 7], [3]], num_rows=10)


def test_empty_sets_on_one_and_on_all_ranks():
    one = probe([[], [1, 2]], num_rows=10)
    assert (one.density, one.densification["2"], one.overlap) == (pytest.approx(0.1), 2.0, 0.0)
    none = probe([[], []], num_rows=10)
    assert (none.density, none.densification["2"], none.skewness) == (0.0, 1.0, 1.0)


def test_dense_gradients_are_found_to_be_dense():
    full = list(range(10))
    assert probe([full, full], num_rows=10).kind == "dense"

    def body(comm):
        watching = PatternProbe(comm)
        watching.observe("fc.weight", None, 20, 30, 2, dtype="float16")
        return watching.finish()[0]

    facts = run_ranks(1, body)[0]
    assert (facts.kind, facts.shape, facts.dtype, facts.sparsity().dense_bytes) == (
        "dense",
        (20, 30),
        "float16",
        1200,
    )


def test_width_one_is_element_sparse_unless_the_shape_has_rows():
    assert probe([[1]], num_rows=10, width=1).kind == "element-sparse"

    def body(comm):
        watching = PatternProbe(comm)
        watching.observe("wide", torch.tensor([1]), 10, 1, 4, shape=(10, 1))
        return watching.finish()[0]

    assert run_ranks(1, body)[0].kind == "row-sparse"


def test_an_index_outside_the_tensor_is_refused_with_the_name():
    with pytest.raises(UserError, match="table: indices reach from 3 to 10, it has 10 rows"):
        probe([[3, 10]], num_rows=10)


def test_classify():
    rows = torch.zeros(100, 8)
    rows[:10] = 1.0
    scattered = torch.zeros(100, 8)
    scattered.view(-1)[::20] = 1.0
    assert classify(rows.to_sparse(1)) == "row-sparse"
    assert classify(rows) == "row-sparse"
    assert classify(scattered) == "element-sparse"
    assert classify(torch.ones(100, 8)) == "dense"
    assert classify(torch.ones(8)) == "dense"
    assert classify(torch.zeros(0, 8)) == "dense"
