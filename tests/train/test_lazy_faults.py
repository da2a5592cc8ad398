"""What goes wrong around lazily pulled tables: equal results to the eager scheme, or an error that says why."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.comm.threads import run_ranks
from omnizen.errors import Disagreement, OmnizenError, PeerLost, UnevenInputs, UserError
from omnizen.train.run import Run
from tests.train.helpers import assert_close, assert_equal, make_run, on_ranks, weights
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
    compare(Many(), sgd, size, reads=reads)


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
    compare(Many(torch.bfloat16), sgd, 3, reads=all_named, tolerance=0.05)
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
            if step % 4 == 0:
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


def failing(size, body, *, timeout_s=10.0):
    """Run ``body(run)`` on ranks that end without closing; returns what each came to."""

    def work(comm):
        run = make_run(comm)
        try:
            return body(run)
        finally:
            run._end(announce=False)

    return run_ranks(size, work, timeout_s=timeout_s)


def test_gradients_that_are_never_zeroed_are_refused() -> None:
    def body(run: Run):
        mine = Bag()
        optimizer = sgd(mine)
        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 2), plan="lazy", reads=named)

        def steps():
            for ids in loader:
                mine(ids).backward()
                optimizer.step()

        with pytest.raises(UserError, match="zero all gradients after the step"):
            steps()

    failing(2, body)


def test_settings_that_change_later_are_refused() -> None:
    def momentum(run, step, model, optimizers):
        optimizers[0].param_groups[0]["momentum"] = 0.9

    def body(run: Run):
        with pytest.raises(UserError, match=r"SGD with momentum=0\.9"):
            loop(Bag(), sgd, batches(run.rank, 2), run, plan="lazy", reads=named, act=momentum)

    failing(2, body)


def test_weights_that_are_written_to_by_hand() -> None:
    torch.manual_seed(0)

    @torch.no_grad()
    def shrink(flush, run, step, model, optimizers):
        if flush:
            run.flush()
        if step % 3 == 0:
            model.table.weight.mul_(0.9)

    compare(Bag(), sgd, 3, act=partial(shrink, True))
    compare(Bag(), sgd, 3, act=partial(shrink, False), reads=None)

    def body(run: Run):
        with pytest.raises(UserError, match=r"table.weight was written to after optimizer.step\(\)"):
            loop(Bag(), sgd, batches(run.rank, 2), run, plan="lazy", reads=named, act=partial(shrink, False))

    failing(2, body)


def test_copies_are_refused_or_stand_alone() -> None:
    def body(run: Run):
        model, taken = Bag(), {}

        def act(run, step, mine, optimizers):
            if step == 2:
                for copied in (copy.deepcopy, pickle.dumps, lambda m: m.table.state_dict()):
                    with pytest.raises(UserError, match=r"lie at their owners; call run.flush\(\)"):
                        copied(mine)
                run.flush()
                taken["copy"], taken["pickled"] = copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))
                taken["weights"] = weights(mine)

        loop(model, sgd, batches(run.rank, 2), run, plan="lazy", reads=named, act=act)
        for kind in ("copy", "pickled"):
            assert_equal(weights(taken[kind]), taken["weights"])
            taken[kind](torch.arange(ROWS)[None]).backward()
        return taken["weights"]

    first, second = on_ranks(2, body)
    assert_equal(first, second)


def test_reads_on_one_rank_only_and_reads_without_a_loader() -> None:
    def one(run: Run):
        mine = Bag()
        with pytest.raises(Disagreement, match="'reads: given' on rank 0, 'reads: none' on rank 1"):
            run.prepare(mine, sgd(mine), batches(run.rank, 2), plan="lazy", reads=None if run.rank else named)

    on_ranks(2, one)

    def no_loader(run: Run):
        mine = Bag()
        with pytest.raises(UserError, match="got no loader; give it one"):
            run.prepare(mine, sgd(mine), plan="lazy", reads=named)

    on_ranks(2, no_loader)


def test_schemes_by_parameter_that_name_lazy_for_an_optimizer_that_cannot() -> None:
    def body(run: Run):
        mine = Bag()
        with pytest.raises(UserError, match="updated by Adam, which changes rows without"):
            run.prepare(mine, torch.optim.Adam(mine.parameters()), plan={"table.weight": "lazy"})

    on_ranks(2, body)


def test_a_forward_that_reads_other_rows_is_refused_before_it_uses_them() -> None:
    def body(run: Run):
        mine = Bag()
        optimizer = sgd(mine)
        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 2), plan="lazy", reads=named)

        def steps():
            for ids in loader:
                mine(torch.arange(ROWS)[None])  # without a gradient, so only forward can notice
                mine(ids).backward()
                optimizer.step()
                optimizer.zero_grad()

        with pytest.raises(OmnizenError, match=r"reads\(batch\) did not name it"):
            steps()

    failing(2, body)


@pytest.mark.parametrize("reads", [named, None])
def test_a_rank_whose_data_end_earlier_is_named(reads) -> None:
    def body(run: Run):
        with pytest.raises((UnevenInputs, PeerLost)) as caught:
            loop(Bag(), sgd, batches(run.rank, 3)[: 5 - 2 * (run.rank == 1)], run, plan="lazy", reads=reads)
        return caught.value

    found = failing(3, body, timeout_s=1.0)
    assert any(
        isinstance(error, UnevenInputs) and "rank 1 has no batch left after 3" in str(error) for error in found
    )


@pytest.mark.parametrize("phase", ["batch", "forward", "backward", "stepped", "flush", "save"])
@pytest.mark.parametrize("reads", [named, None])
def test_a_rank_that_ends_in_any_phase_is_lost_to_all_others(phase, reads, tmp_path) -> None:
    """Phases of the fourth step, after which rank 1 does nothing more."""

    class Gone(Exception):
        pass

    def body(run: Run):
        mine = Bag()
        optimizer = sgd(mine)

        def at(now, step):
            if run.rank == 1 and (now, step) == (phase, 3):
                raise Gone

        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 3), plan="lazy", reads=reads)
        try:
            for step, ids in enumerate(loader):
                at("batch", step)
                loss = mine(ids)
                at("forward", step)
                loss.backward()
                at("backward", step)
                optimizer.step()
                optimizer.zero_grad()
                at("stepped", step)
                if phase == "flush" and step == 3:
                    at("flush", step)
                    run.flush()
                if phase == "save" and step == 3:
                    at("save", step)
                    run.save(tmp_path / "kept")
        except Gone:
            return "gone"
        except PeerLost as error:
            return "lost", error.peer, error.step
        return "nothing noticed"

    first, gone, third = failing(3, body)
    assert gone == "gone"
    for found in (first, third):
        assert found[:1] == ("lost",)
        assert found[1] in (0, 1, 2)


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


def test_masks_of_lazily_pulled_tables_are_refused() -> None:
    def body(run: Run):
        mine = Bag()
        run.prepare(mine, sgd(mine), plan="lazy")
        with pytest.raises(UserError, match=r"table\.weight is pulled lazily"):
            run.prune(0.5)

    on_ranks(2, body)
