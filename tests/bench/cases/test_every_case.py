"""What every case promises."""

import pytest
import torch

from omnizen.bench.cases import make_case
from omnizen.errors import UserError

SIZE, BATCH, SEED = 4, 8, 3


def train(case, *, sparse, steps):
    model = case.make_model(sparse=sparse, seed=SEED)
    optimizer = case.make_optimizer(model)
    losses = []
    for step in range(steps):
        loss = case.loss(model, case.batch_at(step, rank=0, size=1, batch=BATCH, seed=SEED))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def dense_gradients(model):
    return [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in model.parameters()]


def test_batches_are_a_pure_function_of_step_and_rank(case):
    stream = case.batches(rank=1, size=SIZE, batch=BATCH, seed=SEED)
    for step in range(3):
        again = case.batch_at(step, rank=1, size=SIZE, batch=BATCH, seed=SEED)
        assert all(torch.equal(a, b) for a, b in zip(next(stream), again, strict=True))


def test_ranks_and_steps_read_different_data(case):
    firsts = {
        tuple(case.batch_at(step, rank=rank, size=SIZE, batch=BATCH, seed=SEED)[0].flatten().tolist())
        for step in range(2)
        for rank in range(SIZE)
    }
    assert len(firsts) == 2 * SIZE


def test_models_of_a_seed_are_equal_and_leave_the_global_generator_alone(case):
    before = torch.get_rng_state()
    one, two, other = (case.make_model(sparse=s, seed=n) for s, n in ((True, 1), (False, 1), (True, 2)))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_sparse_and_dense_gradients_give_the_same_losses(case):
    sparse, dense = (train(case, sparse=sparse, steps=5) for sparse in (True, False))
    assert sparse == pytest.approx(dense, rel=1e-5)  # float32 sums in another order
    assert sparse[0] != sparse[-1]


def test_only_embeddings_have_sparse_gradients(case):
    for sparse in (True, False):
        model = case.make_model(sparse=sparse, seed=0)
        case.loss(model, case.batch_at(0, rank=0, size=1, batch=BATCH, seed=0)).backward()
        tables = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
        assert all(table.weight.grad.is_sparse == sparse for table in tables)
        assert sum(p.grad.is_sparse for p in model.parameters()) == (len(tables) if sparse else 0)


def test_loss_falls(case):
    losses = train(case, sparse=True, steps=60)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_union_loss_and_gradient_are_the_averages_over_ranks(case):
    union = case.make_model(sparse=True, seed=SEED)
    union_loss = case.union_loss(union, 2, size=SIZE, batch=BATCH, seed=SEED)
    union_loss.backward()
    losses, gradients = [], []
    for rank in range(SIZE):
        model = case.make_model(sparse=True, seed=SEED)
        loss = case.loss(model, case.batch_at(2, rank=rank, size=SIZE, batch=BATCH, seed=SEED))
        loss.backward()
        losses.append(loss.item())
        gradients.append(dense_gradients(model))
    assert union_loss.item() == pytest.approx(sum(losses) / SIZE, rel=1e-5)
    for got, parts in zip(dense_gradients(union), zip(*gradients, strict=True), strict=True):
        torch.testing.assert_close(got, torch.stack(parts).mean(0), rtol=1e-4, atol=1e-6)


def test_too_many_ranks_for_the_data_is_an_error(case):
    with pytest.raises(UserError, match="need"):
        case.batch_at(0, rank=0, size=5000, batch=BATCH, seed=SEED)


def test_unknown_case_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'flights'"):
        make_case("flight")


def test_text_belongs_to_the_language_model(tmp_path):
    with pytest.raises(UserError, match="reads no text"):
        make_case("cnn", text=tmp_path)
