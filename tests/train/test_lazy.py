"""Lazily pulled tables train as eager ones do, move fewer bytes, and refuse what they cannot do."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import OmnizenError, UserError
from omnizen.train.run import Run
from tests.train.helpers import assert_close, assert_equal, make_run, on_ranks, weights

ROWS, STEPS = 60, 12


class Bag(nn.Module):
    """A table whose rows are summed, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 4, sparse=True, dtype=torch.float64)
        self.score = nn.Linear(4, 1, dtype=torch.float64)

    def forward(self, ids):
        return self.score(self.table(ids).sum(1)).square().mean()


def batches(rank: int, size: int, samples: int = 3) -> list[torch.Tensor]:
    """Rows by a law of frequency, so that some come often and some are not read for many steps."""
    rng = torch.Generator().manual_seed(17 * size + rank)
    chances = 1.0 / torch.arange(1, ROWS + 1)
    return [torch.multinomial(chances, samples * 5, True, generator=rng).view(samples, 5) for _ in range(STEPS)]


def named(ids):
    return {"table.weight": ids}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def one_adagrad(model):
    return torch.optim.Adagrad(model.parameters(), lr=0.1, lr_decay=0.01)


def union(model, make, size, samples=3):
    model = copy.deepcopy(model)
    optimizers = make(model)
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    mine = [batches(rank, size, samples) for rank in range(size)]
    losses = []
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(torch.cat([mine[rank][step] for rank in range(size)]))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(float(loss.detach()))
    return weights(model), losses


def sparse_adam_and_sgd(model):
    return [
        torch.optim.SGD(model.score.parameters(), lr=0.05),
        torch.optim.SparseAdam(model.table.parameters(), lr=0.05),
    ]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's Adagrad makes sparse tensors without a word
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("reads", [named, None])
@pytest.mark.parametrize("make", [sgd, one_adagrad, sparse_adam_and_sgd])
def test_weights_and_losses_are_those_of_one_process(size, reads, make) -> None:
    torch.manual_seed(0)
    model = Bag()
    expected, losses = union(model, make, size)

    def body(run: Run):
        mine = copy.deepcopy(model)
        made = make(mine)
        optimizers = made if isinstance(made, list) else [made]
        _, _, loader = run.prepare(mine, made, batches(run.rank, size), plan="lazy", reads=reads)
        seen = []
        for ids in loader:
            loss = mine(ids)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()
            seen.append(float(loss.detach()))
        run.flush()
        return weights(mine), seen

    results = on_ranks(size, body)
    for found, _ in results:
        assert_equal(found, results[0][0])
        assert_close(found, expected)
    means = torch.tensor([seen for _, seen in results], dtype=torch.float64).mean(0)
    torch.testing.assert_close(means, torch.tensor(losses, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_accumulation_clipping_and_a_step_left_out_equal_the_eager_form() -> None:
    torch.manual_seed(0)
    model = Bag()

    def body(plan: str, run: Run):
        mine = copy.deepcopy(model)
        optimizer = sgd(mine)
        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 3), plan=plan, reads=named)
        norms = []
        for i, ids in enumerate(loader):
            if i % 3 == 0:
                with run.no_sync():
                    mine(ids).backward()
                continue
            mine(ids).backward()
            norms.append(float(run.clip_grad_norm_(0.5)))
            if i % 4:
                optimizer.step()
            optimizer.zero_grad()
        run.flush()
        return weights(mine), norms

    lazy, eager = (on_ranks(3, partial(body, plan)) for plan in ("lazy", "zen-coo"))
    for (found, norms), (expected, expected_norms) in zip(lazy, eager, strict=True):
        assert_close(found, expected)
        assert norms == pytest.approx(expected_norms, rel=1e-9)


def test_batches_of_other_sizes_weigh_as_many_samples() -> None:
    torch.manual_seed(0)
    model = Bag()

    def body(plan: str, run: Run):
        mine = copy.deepcopy(model)
        optimizer = sgd(mine)
        own = batches(run.rank, 2, samples=1 + 2 * run.rank)
        _, _, loader = run.prepare(mine, optimizer, own, plan=plan, reads=named)
        for ids in loader:
            mine(ids).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        run.flush()
        return weights(mine)

    lazy, eager = (on_ranks(2, partial(body, plan)) for plan in ("lazy", "zen-coo"))
    for found, expected in zip(lazy, eager, strict=True):
        assert_close(found, expected)


def test_fewer_bytes_than_balanced_parallelism() -> None:
    torch.manual_seed(0)
    model = nn.Embedding(4000, 32, sparse=True)
    rng = torch.Generator().manual_seed(3)
    ids = torch.randint(4000, (4, 10, 200), generator=rng)

    def body(plan: str, comm):
        run = make_run(Metered(comm))
        mine = copy.deepcopy(model)
        optimizer = sgd(mine)
        own = list(ids[run.rank])
        _, _, loader = run.prepare(mine, optimizer, own, plan=plan, reads=lambda batch: {"weight": batch})
        for batch in loader:
            mine(batch).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        received = run.gradients.reading().rx_bytes
        run.close()
        return received

    lazy, eager = (max(run_ranks(4, partial(body, plan))) for plan in ("lazy", "zen-coo"))
    assert lazy < 0.5 * eager


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_checkpoint_goes_on_bit_for_bit(tmp_path) -> None:
    torch.manual_seed(0)
    model = Bag()

    def train(run: Run, start: int, stop: int, resume: bool):
        mine = copy.deepcopy(model)
        optimizer = one_adagrad(mine)
        own = batches(run.rank, 2)[start:stop]
        _, _, loader = run.prepare(mine, optimizer, own, plan="lazy", reads=named)
        if resume:
            run.load(tmp_path / "kept")
        for ids in loader:
            mine(ids).backward()
            optimizer.step()
            optimizer.zero_grad()
        if stop == 6:
            run.save(tmp_path / "kept")
        run.flush()
        return weights(mine)

    straight = on_ranks(2, lambda run: train(run, 0, STEPS, False))
    on_ranks(2, lambda run: train(run, 0, 6, False))
    resumed = on_ranks(2, lambda run: train(run, 6, STEPS, True))
    for a, b in zip(straight, resumed, strict=True):
        assert_equal(a, b)


def refused(model, make, message, **options) -> None:
    def body(run: Run):
        mine = copy.deepcopy(model)
        with pytest.raises(UserError, match=message):
            run.prepare(mine, make(mine), plan="lazy", **options)

    on_ranks(2, body)


def test_optimizers_and_models_that_cannot_be_pulled_lazily_are_refused() -> None:
    refused(Bag(), lambda m: torch.optim.Adam(m.parameters()), "updated by Adam, which changes rows without")
    refused(Bag(), lambda m: torch.optim.SGD(m.parameters(), lr=1, momentum=0.9), "SGD with momentum=0.9")
    refused(nn.Embedding(5, 2), sgd, "sparse=False")
    refused(Bag(), sgd, "GradScaler", scaler=torch.amp.GradScaler("cpu"))
    tied = Bag()
    tied.out = nn.Linear(4, ROWS, bias=False, dtype=torch.float64)
    tied.out.weight = tied.table.weight
    refused(tied, sgd, "used by Linear")


def train_a_little(run: Run, reads=named, steps: int = 3):
    torch.manual_seed(0)
    model = Bag()
    optimizer = sgd(model)
    _, _, loader = run.prepare(model, optimizer, batches(run.rank, 2)[:steps], plan="lazy", reads=reads)
    for ids in loader:
        model(ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_rows_that_lie_elsewhere_are_not_read_by_mistake() -> None:
    def body(run: Run):
        model = train_a_little(run)
        every = torch.arange(ROWS)[None]
        with (
            pytest.raises(UserError, match=r"row \d+ of table.weight is read outside of training"),
            torch.no_grad(),
        ):
            model(every)
        with pytest.raises(UserError, match=r"run.flush\(\)"):
            model.state_dict()
        run.flush()
        with torch.no_grad():
            value = float(model(every))
        return value, weights(model)

    (a, first), (b, second) = on_ranks(2, body)
    assert a == b
    assert_equal(first, second)


def test_a_row_that_was_not_named_is_noticed() -> None:
    def body(run: Run):
        with pytest.raises(OmnizenError, match=r"row \d+ of table.weight was read in this step without its last"):
            train_a_little(run, reads=lambda ids: {"table.weight": ids[:1]}, steps=STEPS)

    def work(comm):
        run = make_run(comm)
        body(run)
        run._end(announce=False)

    run_ranks(2, work, timeout_s=10)


def test_names_that_do_not_exist_and_rows_out_of_range() -> None:
    def body(run: Run):
        with pytest.raises(UserError, match=r"must name the rows of table\.weight; it names those of table"):
            train_a_little(run, reads=lambda ids: {"table": ids})
        run._end(announce=False)

    run_ranks(2, lambda comm: body(make_run(comm)), timeout_s=10)

    def far(run: Run):
        with pytest.raises(UserError, match=r"rows of table.weight are 0..59; row 99"):
            train_a_little(run, reads=lambda ids: {"table.weight": ids + 99 - ids.max()})
        run._end(announce=False)

    run_ranks(2, lambda comm: far(make_run(comm)), timeout_s=10)


def test_a_second_backward_before_the_step_is_refused() -> None:
    def body(run: Run):
        model = Bag()
        run.prepare(model, sgd(model), plan="lazy")
        model(torch.tensor([[1, 2]])).backward()
        with pytest.raises(UserError, match="second backward was added"):
            model(torch.tensor([[1, 2]])).backward()
        run._end(announce=False)

    run_ranks(2, lambda comm: body(make_run(comm)), timeout_s=10)


def test_auto_pulls_lazily_when_rows_are_named_and_the_optimizer_is_row_wise() -> None:
    torch.manual_seed(0)
    model = Bag()
    expected, _ = union(model, sgd, 3)

    def body(reads, run: Run):
        mine = copy.deepcopy(model)
        optimizer = sgd(mine)
        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 3), reads=reads)
        for ids in loader:
            mine(ids).backward()
            optimizer.step()
            optimizer.zero_grad()
        run.flush()
        (table,) = (t for t in run.plan.tensors if t.name == "table.weight")
        return weights(mine), {table.scheme, *(r.scheme for r in table.rejected)}

    for found, known in on_ranks(3, partial(body, named)):
        assert "lazy" in known
        assert_close(found, expected)
    for found, known in on_ranks(3, partial(body, None)):
        assert "lazy" not in known
        assert_close(found, expected)
