"""Loops of all kinds around lazily pulled tables give what the eager scheme gives."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.train.run import Run
from tests.train.helpers import assert_close, assert_equal, on_ranks, weights
from tests.train.test_lazy import ROWS, STEPS, Bag, batches, named, one_adagrad, sgd, sparse_adam_and_sgd

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")


class Many(nn.Module):
    """Tables of all kinds: bags, padding, width 1, one row, shared by two modules, one that is never read."""

    def __init__(self, dtype=torch.float64) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, 3, sparse=True, mode="sum", dtype=dtype)
        self.padded = nn.Embedding(ROWS, 3, sparse=True, padding_idx=1, dtype=dtype)
        self.again = nn.Embedding(ROWS, 3, sparse=True, dtype=dtype)
        self.again.weight = self.padded.weight
        self.narrow = nn.Embedding(ROWS, 1, sparse=True, dtype=dtype)
        self.single = nn.Embedding(1, 3, sparse=True, dtype=dtype)
        self.unread = nn.Embedding(4, 3, sparse=True, dtype=dtype)
        self.score = nn.Linear(3, 1, dtype=dtype)

    def forward(self, ids):
        rows = self.padded(ids) + self.again(input=ids.flip(1)) + self.single(ids * 0)
        return (self.score(rows.sum(1) + self.bag(ids)) + self.narrow(ids).sum(1)).square().mean()


def first_named(batch):
    return {"table.weight": batch[0]}


def dealt(ids, batch_size):
    order = torch.Generator().manual_seed(3)
    return DataLoader(TensorDataset(ids), batch_size=batch_size, shuffle=True, generator=order)


def slow(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def all_named(ids):
    tables = ("bag", "padded", "narrow", "single", "unread")
    rows = {f"{name}.weight": ids for name in tables}
    return rows | {"single.weight": ids * 0, "unread.weight": ids[:0]}


def loop(model, make, own, run: Run, *, plan, reads, act=None):
    """Train a copy; ``act(run, step, model, optimizers)`` is called after each step."""
    mine = copy.deepcopy(model)
    made = make(mine)
    optimizers = made if isinstance(made, list) else [made]
    _, _, loader = run.prepare(mine, made, own, plan=plan, reads=reads)
    for step, ids in enumerate(loader):
        mine(ids).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if act is not None:
            act(run, step, mine, optimizers)
    run.flush()
    return weights(mine)


def compare(model, make, size, *, reads=named, act=None, own=batches, tolerance=1e-9):
    def body(plan: str, run: Run):
        return loop(model, make, own(run.rank, size), run, plan=plan, reads=reads, act=act)

    lazy, eager = (on_ranks(size, partial(body, plan)) for plan in ("lazy", "zen-coo"))
    for found, expected in zip(lazy, eager, strict=True):
        assert_equal(found, lazy[0])
        assert_close(found, expected, tolerance)


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("reads", [all_named, None])
def test_tables_of_all_kinds(size, reads) -> None:
    torch.manual_seed(0)
    compare(Many(), slow, size, reads=reads)


def test_more_ranks_than_rows() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(3, 2, sparse=True, dtype=torch.float64), nn.Linear(2, 1).double())

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(model)

        def forward(self, ids):
            return self.inner(ids % 3).square().mean()

    compare(Mean(), sgd, 5, reads=lambda ids: {"inner.0.weight": ids % 3})


def test_an_empty_table_and_half_precision() -> None:
    torch.manual_seed(0)
    compare(Many(torch.bfloat16), slow, 3, reads=all_named, tolerance=0.05)
    model = Bag()
    model.nothing = nn.Embedding(0, 4, sparse=True, dtype=torch.float64)
    compare(model, sgd, 2, reads=lambda ids: {"table.weight": ids, "nothing.weight": ids[:0]})


def groups(model):
    return torch.optim.SGD(
        [{"params": [model.table.weight], "lr": 0.2}, {"params": model.score.parameters()}], lr=0.05
    )


def test_groups_of_parameters_and_a_schedule() -> None:
    torch.manual_seed(0)

    def half(run, step, model, optimizers):
        for group in optimizers[0].param_groups:
            group["lr"] *= 0.9

    compare(Bag(), groups, 3, act=half)


def test_passes_that_are_left_early_and_evaluation_in_between() -> None:
    torch.manual_seed(0)
    model = Bag()
    ids = torch.cat(batches(0, 1, samples=4))

    def body(plan, reads, run: Run):
        mine = copy.deepcopy(model)
        optimizer = one_adagrad(mine)
        loader = dealt(ids, 3)
        _, _, loader = run.prepare(mine, optimizer, loader, plan=plan, reads=reads)
        seen = []
        for epoch in range(4):
            for step, (batch,) in enumerate(loader):
                if epoch % 2 and step == 2:
                    break  # with a batch foreseen, and its rows on their way
                loss = mine(batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                seen.append(float(loss.detach()))
            if epoch == 2:
                run.flush()
                mine.eval()
                with torch.no_grad():
                    seen.append(float(mine(ids)))
                mine.train()
        run.flush()
        return weights(mine), seen

    eager = on_ranks(2, partial(body, "zen-coo", None))
    for reads in (first_named, None):
        for (found, seen), (expected, losses) in zip(on_ranks(2, partial(body, "lazy", reads)), eager, strict=True):
            assert_close(found, expected)
            assert seen == pytest.approx(losses, rel=1e-9)


def test_weights_of_batches_that_change_and_vanish() -> None:
    torch.manual_seed(0)
    model = Bag()
    shares = [[1, 1, 0, 5, 1e6, 1, 0, 0, 3, 1e-6, 1, 1], [1, 2, 3, 0, 1, 1e-6, 0, 2, 1e6, 1, 1, 1]]

    def body(plan, run: Run):
        mine = copy.deepcopy(model)
        optimizer = sgd(mine)
        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 2), plan=plan, reads=named)
        for ids, weight in zip(loader, shares[run.rank], strict=True):
            run.set_batch_weight(weight)
            mine(ids).backward()
            optimizer.step()
            optimizer.zero_grad()
        run.flush()
        return weights(mine)

    lazy, eager = (on_ranks(2, partial(body, plan)) for plan in ("lazy", "zen-coo"))
    for found, expected in zip(lazy, eager, strict=True):
        assert_close(found, expected)


def test_gradients_that_were_replaced_and_a_second_step_reach_all_ranks() -> None:
    torch.manual_seed(0)
    model = Bag()

    def body(plan, reads, run: Run):
        mine = copy.deepcopy(model)
        optimizer = sgd(mine)
        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 3), plan=plan, reads=reads)
        for step, ids in enumerate(loader):
            mine(ids).backward()
            if step % 3 == 0:
                mine.table.weight.grad = mine.table.weight.grad * 0.5
            optimizer.step()
            if step % 3 == 1:
                optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        run.flush()
        return weights(mine)

    eager = on_ranks(3, partial(body, "zen-coo", None))
    for reads in (named, None):
        for found, expected in zip(on_ranks(3, partial(body, "lazy", reads)), eager, strict=True):
            assert_close(found, expected)


def test_a_step_left_out_with_gradients_zeroed_in_place() -> None:
    torch.manual_seed(0)
    model = Bag()

    def body(plan, run: Run):
        mine = copy.deepcopy(model)
        optimizer = sgd(mine)
        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 2), plan=plan, reads=named)
        for step, ids in enumerate(loader):
            mine(ids).backward()
            if step % 3:
                optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        run.flush()
        return weights(mine)

    lazy, eager = (on_ranks(2, partial(body, plan)) for plan in ("lazy", "zen-coo"))
    for found, expected in zip(lazy, eager, strict=True):
        assert_close(found, expected)


def test_losses_with_steps_of_their_own_on_one_batch() -> None:
    torch.manual_seed(0)
    model = Bag()

    def body(plan, run: Run):
        mine = copy.deepcopy(model)
        optimizers = [sgd(mine), torch.optim.SGD(mine.table.parameters(), lr=0.01)]
        _, _, loader = run.prepare(mine, optimizers, batches(run.rank, 3), plan=plan)
        for ids in loader:
            for sign, optimizer in zip((1, -1), optimizers, strict=True):
                (sign * mine(ids)).backward()
                optimizer.step()
                optimizers[0].zero_grad()
        run.flush()
        return weights(mine)

    lazy, eager = (on_ranks(3, partial(body, plan)) for plan in ("lazy", "zen-coo"))
    for found, expected in zip(lazy, eager, strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("make", [one_adagrad, sparse_adam_and_sgd])
def test_resuming_in_the_middle_of_a_pass_and_loading_after_training_went_on(tmp_path, make) -> None:
    torch.manual_seed(0)
    model = Bag()
    ids = torch.cat(batches(0, 1, samples=4))

    def body(folder, resume, run: Run):
        mine = copy.deepcopy(model)
        made = make(mine)
        optimizers = made if isinstance(made, list) else [made]
        loader = dealt(ids, 4)
        _, _, loader = run.prepare(mine, made, loader, plan="lazy", reads=first_named)

        def go(steps):
            for batch in loader:
                mine(batch[0]).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                steps -= 1
                if not steps:
                    return

        if resume:
            run.load(folder)
        else:
            go(4)
            run.save(folder)
            go(3)
            run.load(folder)
        go(2)
        go(4)
        run.flush()
        return weights(mine)

    straight = on_ranks(2, partial(body, tmp_path / "kept", False))
    resumed = on_ranks(2, partial(body, tmp_path / "kept", True))
    for a, b in zip(straight, resumed, strict=True):
        assert_equal(a, straight[0])
        assert_equal(a, b)


class Places:
    """A loader with a place of its own, as those with a ``state_dict`` are."""

    def __init__(self, batches) -> None:
        self.batches, self.at = batches, 0

    def __iter__(self):
        while self.at < len(self.batches):
            self.at += 1
            yield self.batches[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_a_loader_with_a_place_of_its_own_is_saved_where_training_is(tmp_path) -> None:
    torch.manual_seed(0)
    model = Bag()

    def body(resume, run: Run):
        mine = copy.deepcopy(model)
        optimizer = sgd(mine)
        _, _, loader = run.prepare(mine, optimizer, Places(batches(run.rank, 2)), plan="lazy", reads=named)
        if resume:
            run.load(tmp_path / "kept")
        for step, ids in enumerate(loader):
            mine(ids).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 4 and not resume:
                run.save(tmp_path / "kept")
        run.flush()
        return weights(mine), run.step

    straight, resumed = (on_ranks(2, partial(body, resume)) for resume in (False, True))
    for (a, steps), (b, after) in zip(straight, resumed, strict=True):
        assert (steps, after) == (STEPS, STEPS)
        assert_equal(a, b)


def test_following_another_plan_gives_every_rank_every_row() -> None:
    torch.manual_seed(0)
    model = Bag()

    def body(reads, run: Run):
        mine = copy.deepcopy(model)
        optimizer = one_adagrad(mine)
        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 2), reads=reads)
        for step, ids in enumerate(loader):
            mine(ids).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 8:
                tensors = [
                    t.model_copy(update={"scheme": "zen-coo"}) for t in run.plan.tensors if t.kind != "dense"
                ]
                kept = [t for t in run.plan.tensors if t.kind == "dense"]
                run.follow(run.plan.model_copy(update={"tensors": [*kept, *tensors]}))
        run.flush()
        return weights(mine)

    for found, expected in zip(on_ranks(2, partial(body, named)), on_ranks(2, partial(body, None)), strict=True):
        assert_close(found, expected)
