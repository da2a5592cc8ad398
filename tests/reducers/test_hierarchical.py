"""Groups of ranks: sums inside, shares across, and what crosses between groups."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.errors import UserError
from omnizen.laws.reducer import zipf_contributions
from omnizen.reducers.contribution import as_tensor
from omnizen.reducers.feedback import feedback
from omnizen.reducers.hierarchical import by_host, hierarchical
from omnizen.reducers.hitopkcomm import hitopkcomm
from omnizen.reducers.selected import selected
from omnizen.selectors.top_k import top_k
from omnizen.types import Dense, Sparse, Step

LAYOUTS = {
    "pairs": ((0, 1), (2, 3), (4, 5)),
    "interleaved": ((0, 2, 4), (1, 3, 5)),
    "unequal": ((0, 1, 2), (3, 4), (5,)),
    "one group": ((0, 1, 2, 3, 4, 5),),
    "alone": ((0,), (1,), (2,), (3,), (4,), (5,)),
}


def rows(rank, k=9, width=3, dtype=torch.float32):
    rng = torch.Generator().manual_seed(rank)
    at = torch.randperm(31, generator=rng)[:k].sort().values
    return Sparse(at, torch.randn(k, width, generator=rng, dtype=torch.float64).to(dtype), 31)


def run(reducer, inputs, steps=1, ranks=run_ranks):
    def body(comm):
        comm = Metered(comm)
        state = reducer.init(inputs[comm.rank])
        for n in range(steps):
            reduced = reducer.start(inputs[comm.rank], state, comm, Step(n, name="x")).wait()
            state = reduced.state
        return reduced, comm.reading().tx_bytes_by_peer()

    return ranks(len(inputs), body)


def average(inputs):
    return sum(as_tensor(x).double() for x in inputs) / len(inputs)


@pytest.mark.parametrize("name", ["agsparse", "zen-coo", "sparcml", "parameter-server", "omnireduce", "dense"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_the_average_of_all_ranks(name, layout):
    inputs = [rows(rank, k=0 if rank == 4 else 9) for rank in range(6)]
    found = run(hierarchical(catalog.reducer(name), LAYOUTS[layout]), inputs)
    for reduced, _ in found:
        torch.testing.assert_close(as_tensor(reduced.value).double(), average(inputs), rtol=1e-6, atol=1e-6)
        assert torch.equal(as_tensor(reduced.value), as_tensor(found[0][0].value))
        assert reduced.sent is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dense_tensors_keep_their_shape(layout):
    inputs = [Dense(torch.randn(5, 7, generator=torch.Generator().manual_seed(r))) for r in range(6)]
    for reduced, _ in run(hierarchical(catalog.reducer("dense"), LAYOUTS[layout]), inputs):
        assert isinstance(reduced.value, Dense)
        torch.testing.assert_close(reduced.value.values.double(), average(inputs), rtol=1e-6, atol=1e-6)


def test_sums_of_16_bit_rows_are_rounded_once():
    inputs = [Sparse(torch.tensor([0]), torch.tensor([[v]], dtype=torch.float16), 1) for v in (2048, 1, 1, 2)]
    for reduced, _ in run(hierarchical(catalog.reducer("agsparse"), 2), inputs):
        assert as_tensor(reduced.value).item() == 513  # not 512: in float16, 2048 + 1 is 2048


def test_between_groups_each_rank_moves_only_its_share():
    """Two groups of four: across, a rank exchanges about a quarter of its group's union with one peer."""
    inputs = zipf_contributions(Sparse, 8, num_rows=4000, rows=800, width=8)
    groups = ((0, 1, 2, 3), (4, 5, 6, 7))
    flat = run(catalog.reducer("agsparse"), inputs)
    found = run(hierarchical(catalog.reducer("agsparse"), groups), inputs)
    across = [sum(n for peer, n in sent.items() if peer // 4 != rank // 4) for rank, (_, sent) in enumerate(found)]
    before = [sum(n for peer, n in sent.items() if peer // 4 != rank // 4) for rank, (_, sent) in enumerate(flat)]
    assert max(across) < 0.2 * min(before)
    assert all(set(sent) <= {0, 1, 2, 3, rank, rank + 4} for rank, (_, sent) in enumerate(found[:4]))
    union = torch.cat([x.indices for x in inputs[:4]]).unique().numel()
    assert sum(across[:4]) == union * (4 + 32) + 4 * 2 * 8


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [Dense, Sparse])
def test_what_a_lossy_reducer_leaves_out_is_owed_by_who_has_the_share(kind, layout):
    inputs = [rows(rank) if kind is Sparse else Dense(rows(rank).to_dense()) for rank in range(6)]
    inside = catalog.reducer("agsparse", values="float16") if kind is Sparse else selected(
        top_k(0.2), catalog.reducer("agsparse")
    )  # fmt: skip
    found = run(hierarchical(inside, LAYOUTS[layout]), inputs)
    sent = sum(as_tensor(reduced.sent or x).view(31, 3) for (reduced, _), x in zip(found, inputs, strict=True)) / 6
    torch.testing.assert_close(as_tensor(found[0][0].value).view(31, 3), sent, rtol=1e-5, atol=1e-6)


def test_hitopkcomm_is_top_k_of_the_groups_sums():
    """Against the steps written out: reduce-scatter, top-k of each shard, all-gather across, all-gather inside."""
    g, m, numel, density = 2, 3, 40, 0.1
    inputs = [Dense(torch.randn(numel, generator=torch.Generator().manual_seed(r))) for r in range(g * m)]
    expected = torch.zeros(numel)
    for group in range(m):
        total = inputs[2 * group].values + inputs[2 * group + 1].values
        for shard in range(g):
            piece = total.tensor_split(g)[shard]
            kept = piece.abs().topk(round(density * piece.numel())).indices
            expected.tensor_split(g)[shard][kept] += piece[kept]
    for reduced, _ in run(hitopkcomm(density, g), inputs):
        torch.testing.assert_close(as_tensor(reduced.value).view(-1), expected / (g * m), rtol=1e-6, atol=1e-6)


def test_the_residual_of_hitopkcomm_lies_on_the_shares_and_loses_nothing():
    inputs = [Dense(torch.randn(40, generator=torch.Generator().manual_seed(r))) for r in range(4)]
    reducer = hitopkcomm(0.1, 2)

    def body(comm):
        state, total = reducer.init(inputs[comm.rank]), torch.zeros(40)
        for n in range(30):
            reduced = reducer.start(inputs[comm.rank], state, comm, Step(n, name="x")).wait()
            state = reduced.state
            total += as_tensor(reduced.value).view(-1)
        return total, state.slots["across.residual"]

    found = run_ranks(4, body)
    assert [residual.numel() for _, residual in found] == [20] * 4
    owed = torch.cat([found[0][1], found[1][1]]) + torch.cat([found[2][1], found[3][1]])
    torch.testing.assert_close(found[0][0] + owed / 2, 30 * average(inputs).float(), rtol=1e-4, atol=1e-4)


def test_feedback_may_also_be_put_around():
    inputs = [rows(rank) for rank in range(4)]
    reducer = feedback(hierarchical(catalog.reducer("zen-coo", values="float16"), 2))
    reduced, _ = run(reducer, inputs, steps=3)[0]
    torch.testing.assert_close(as_tensor(reduced.value), average(inputs).float(), rtol=0, atol=0.01)


def test_on_gloo_groups_are_made_once_and_end_with_their_comm():
    inputs = [rows(rank) for rank in range(4)]
    for reduced, _ in run(hierarchical(catalog.reducer("agsparse"), 2), inputs, steps=3, ranks=thread_gloo_ranks):
        torch.testing.assert_close(as_tensor(reduced.value).double(), average(inputs), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (0, "a number from 1, got 0"),
        (True, "a number from 1, got True"),
        ("ab", "a number from 1, got 'ab'"),
        ([[0, 1], [1]], "each of ranks 0..n-1 once"),
        ([[0], []], "each of ranks 0..n-1 once"),
        ([], "each of ranks 0..n-1 once"),
    ],
)
def test_groups_that_cannot_be(groups, said):
    with pytest.raises(UserError, match=said):
        hierarchical(catalog.reducer("dense"), groups)


def test_groups_of_another_number_of_ranks():
    with pytest.raises(UserError, match="groups hold 4 ranks, this comm has 2"):
        run(hierarchical(catalog.reducer("dense"), [[0, 1], [2, 3]]), [rows(0), rows(1)])


def test_ranks_that_share_a_host_are_a_group():
    assert by_host(["a", "b", "a", "c"]) == ((0, 2), (1,), (3,))
