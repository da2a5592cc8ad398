"""``run.prepare(balance=...)`` on thread ranks whose speeds are simulated."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.errors import Disagreement, UserError
from omnizen.events import BalanceEvent, StepEvent, events_path, read_events
from omnizen.plan.batch_control import BatchLaw
from omnizen.strategies import local_sgd
from omnizen.train import balance_wish, prepare
from omnizen.train.own_time import OwnTime
from omnizen.train.run import Run
from tests.train.helpers import alone, assert_close, assert_equal, on_ranks, sgd, weights

EVEN = BatchLaw(start="even")


def model_and_data(rows: int):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return model, torch.randn(rows, 5, dtype=torch.float64), torch.randn(rows, 1, dtype=torch.float64)


def mse(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


class Simulated(OwnTime):
    """Seconds that follow from the samples of a step; what was read is known from the run."""

    slowness: tuple[float, ...] = (1.0, 1.0, 3.0)
    run: Run

    def end(self, at_s: float) -> None:
        del at_s
        self.seconds = getattr(self, "seconds", 0.0) + self.run.balance._read * self.slowness[self.run.rank]

    def take(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@pytest.fixture
def simulated(monkeypatch):
    monkeypatch.setattr(prepare, "OwnTime", Simulated)
    return Simulated


def train(run: Run, model, x, y, *, batch: int, epochs: int = 1, accumulate: int = 1, **options):
    """Train a copy; returns the indices that were read step by step, and the weights."""
    mine = copy.deepcopy(model)
    loader = DataLoader(TensorDataset(torch.arange(len(x)), x, y), batch_size=batch)
    options = {"plan": "dense", "balance": EVEN} | options
    _, optimizer, loader = run.prepare(mine, sgd(mine), loader, **options)
    if run.balance is not None and isinstance(run.balance._own, Simulated):
        run.balance._own.run = run
    seen: list[list[int]] = []
    for _ in range(epochs):
        for n, (i, a, b) in enumerate(loader):
            seen.append(i.tolist())
            if accumulate > 1 and (n + 1) % accumulate and n + 1 < len(loader):
                with run.no_sync():
                    (mse(mine, (a, b)) * len(i)).backward()
                continue
            mse(mine, (a, b)).backward() if accumulate == 1 else (mse(mine, (a, b)) * len(i)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return seen, weights(mine)


def sizes_of(results) -> list[tuple[int, ...]]:
    return [tuple(map(len, step)) for step in zip(*(seen for seen, _ in results), strict=True)]


def test_batches_follow_the_ranks_speeds_and_the_result_is_that_of_one_process(simulated) -> None:
    """12 samples a step; the third rank takes three times as long for one."""
    model, x, y = model_and_data(12 * 20)
    results = on_ranks(3, lambda run: train(run, model, x, y, batch=4))
    sizes = sizes_of(results)
    assert sizes[:6] == [(4, 4, 4)] * 6
    assert sizes[-1] == (5, 5, 2)
    assert {sum(step) for step in sizes} == {12}
    assert_equal(results[0][1], results[2][1])
    union = [(x[i : i + 12], y[i : i + 12]) for i in range(0, len(x), 12)]
    assert_close(results[0][1], alone(model, union, mse))


def test_gradients_of_unequal_batches_equal_the_unions_in_float32(simulated) -> None:
    model, x, y = model_and_data(12)
    model, x, y = model.float(), x.float(), y.float()

    def body(run: Run):
        mine = copy.deepcopy(model)
        shares = [2 / 3, 1 / 4, 1 / 12]
        loader = DataLoader(TensorDataset(x, y), batch_size=4)
        _, _, loader = run.prepare(mine, sgd(mine), loader, plan="dense", balance=shares)
        for batch in loader:
            assert len(batch[0]) == (8, 3, 1)[run.rank]
            mse(mine, batch).backward()
        return {name: p.grad for name, p in mine.named_parameters()}

    reference = copy.deepcopy(model)
    mse(reference, (x, y)).backward()
    expected = {name: p.grad for name, p in reference.named_parameters()}
    for result in on_ranks(3, body):
        assert_close(result, expected, 1e-6)


@pytest.mark.parametrize("rows", [12 * 20 + 7, 12 * 20 + 1])
def test_uneven_ends_of_several_epochs_and_accumulation(simulated, rows: int) -> None:
    model, x, y = model_and_data(rows)
    results = on_ranks(3, lambda run: train(run, model, x, y, batch=4, epochs=2, accumulate=2, reduction="mean"))
    sizes = sizes_of(results)
    assert (5, 5, 2) in sizes
    for epoch in (0, 1):
        half = slice(epoch * len(sizes) // 2, (epoch + 1) * len(sizes) // 2)
        read = [i for seen, _ in results for part in seen[half] for i in part]
        assert sorted(read) == list(range(rows))
    assert_equal(results[0][1], results[1][1])


def test_lazy_plans_read_ahead_of_a_change(simulated) -> None:
    torch.manual_seed(0)
    table = nn.EmbeddingBag(30, 4, mode="mean", sparse=True, dtype=torch.float64)
    words = torch.randint(0, 30, (12 * 20, 3))

    def loss(model, batch):
        return model(batch[0]).square().mean()

    def body(run: Run):
        mine = copy.deepcopy(table)
        loader = DataLoader(TensorDataset(words), batch_size=4, num_workers=0)
        _, optimizer, loader = run.prepare(
            mine, sgd(mine), loader, plan="lazy", balance=EVEN, reads=lambda batch: {"weight": batch[0]}
        )
        run.balance._own.run = run
        sizes = []
        for batch in loader:
            sizes.append(len(batch[0]))
            loss(mine, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        run.flush()
        return sizes, weights(mine)

    results = on_ranks(3, body)
    assert [sizes[-1] for sizes, _ in results] == [5, 5, 2]
    union = [(words[i : i + 12],) for i in range(0, len(words), 12)]
    assert_close(results[0][1], alone(table, union, loss))


def test_events_say_what_changed_when_and_why(simulated, tmp_path) -> None:
    model, x, y = model_and_data(12 * 20)
    on_ranks(3, lambda run: train(run, model, x, y, batch=4), run_dir=tmp_path)
    for rank in range(3):
        log = read_events(events_path(tmp_path, rank))
        assert not log.problems
        balances = [event for event in log.events if isinstance(event, BalanceEvent)]
        assert [event.sizes for event in balances] == [[4, 4, 4], [5, 5, 2]]
        assert balances[1].own_s == [4.0, 4.0, 12.0]
        steps = [event.samples for event in log.events if isinstance(event, StepEvent)]
        assert (steps[0], steps[-1]) == (4, (5, 5, 2)[rank])


def test_resuming_keeps_sizes_and_what_led_to_them(simulated, tmp_path) -> None:
    model, x, y = model_and_data(12 * 30)

    def body(run: Run, *, stop: int | None, resume: bool):
        mine = copy.deepcopy(model)
        loader = DataLoader(TensorDataset(torch.arange(len(x)), x, y), batch_size=4, shuffle=True)
        _, optimizer, loader = run.prepare(mine, sgd(mine), loader, plan="dense", balance=EVEN)
        run.balance._own.run = run
        if resume:
            run.load(tmp_path / "half")
        seen = []
        for n, (i, a, b) in enumerate(loader):
            seen.append(i.tolist())
            mse(mine, (a, b)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if n + 1 == stop:
                run.save(tmp_path / "half")
                break
        return seen, weights(mine), run.balance.state_dict()

    whole = on_ranks(3, lambda run: body(run, stop=None, resume=False))
    for stop in (7, 20):  # a change is decided and not yet in force; it is
        first = on_ranks(3, lambda run, stop=stop: body(run, stop=stop, resume=False))
        second = on_ranks(3, lambda run: body(run, stop=None, resume=True))
        for a, b, c in zip(first, second, whole, strict=True):
            assert a[0] + b[0] == c[0]
            assert_equal(b[1], c[1])
            assert b[2]["sizes"] == c[2]["sizes"] == [5, 5, 2]


def test_batches_of_ones_own_follow_run_batch_sizes() -> None:
    model, x, y = model_and_data(12)

    def body(run: Run):
        mine = copy.deepcopy(model)
        law = BatchLaw(global_batch=12, start=(0.5, 0.25, 0.25))
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan="dense", balance=law)
        own = run.balance._own
        ends = [sum(run.batch_sizes[: run.rank + 1]) for _ in range(1)]
        begin = ends[0] - run.batch_sizes[run.rank]
        mse(mine, (x[begin : ends[0]], y[begin : ends[0]])).backward()
        gradient = [p.grad.clone() for p in mine.parameters()]
        optimizer.step()
        own.take = lambda: float(run.batch_sizes[run.rank] * (1 + 2 * (run.rank == 2)))
        for _ in range(6):
            mse(mine, (x[:1], y[:1])).backward()
            optimizer.step()
        return gradient, run.batch_sizes

    reference = copy.deepcopy(model)
    mse(reference, (x, y)).backward()
    for gradient, sizes in on_ranks(3, body):
        for ours, theirs in zip(gradient, reference.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.grad)
        assert sizes == (5, 5, 2)


def test_one_rank_and_no_balance() -> None:
    model, x, y = model_and_data(8)

    def body(run: Run):
        seen, _ = train(run, model, x, y, batch=4, balance="auto")
        return run.batch_sizes, [len(part) for part in seen]

    assert on_ranks(1, body) == [((4,), [4, 4])]

    def own_batches(run: Run):
        mine = copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan="dense", balance=BatchLaw(global_batch=8))
        mse(mine, (x, y)).backward()
        optimizer.step()
        return run.batch_sizes

    assert on_ranks(1, own_batches) == [(8,)]

    def without(run: Run):
        mine = copy.deepcopy(model)
        run.prepare(mine, sgd(mine), DataLoader(TensorDataset(x), batch_size=4), plan="dense")
        return run.batch_sizes

    assert on_ranks(2, without) == [(4, 4)] * 2


def ask(run: Run, balance, loader="plain"):
    model, x, _ = model_and_data(8)
    if loader == "plain":
        loader = DataLoader(TensorDataset(x), batch_size=2)
    run.prepare(model, sgd(model), loader, plan="dense", balance=balance)


@pytest.mark.parametrize(
    ("balance", "said"),
    [
        ("atuo", "did you mean 'auto'"),
        (3, "a share for each rank"),
        ([0.5, 0.2, 0.3], "a share for each of 2 ranks, got 3"),
        ([0.5, 0.7], r"sum to 1.2; did you mean \[0.4167, 0.5833\]"),
        ([1.5, -0.5], "above 0"),
        ([math.nan, 1.0], "above 0"),
        (BatchLaw(most=1), "together they take at most 2"),
        (BatchLaw(least=3), "each takes at least 3"),
        (BatchLaw(global_batch=7), "global_batch is 7, but the loader's is 4"),
        (BatchLaw(start=(0.5, 0.2)), "sum to 0.7"),
    ],
)
def test_what_cannot_be_is_refused_on_all_ranks(balance, said: str) -> None:
    def body(run: Run) -> str:
        with pytest.raises(UserError, match=said) as found:
            ask(run, balance)
        return str(found.value)

    assert len(on_ranks(2, body)) == 2


def test_loaders_that_are_not_dealt_out_are_refused() -> None:
    def body(run: Run) -> None:
        with pytest.raises(UserError, match=r"pass loader=None and balance=BatchLaw\(global_batch=...\)"):
            ask(run, "auto", [torch.ones(2, 5, dtype=torch.float64)])
        with pytest.raises(UserError, match="needs the samples of all ranks a step"):
            ask(run, "auto", None)
        with pytest.raises(UserError, match="3 samples cannot be shared by 4 workers"):
            ask(run, BatchLaw(global_batch=3), None)

    on_ranks(4, body)


def test_strategies_with_a_pace_of_their_own_are_refused() -> None:
    def body(run: Run) -> None:
        model, x, _ = model_and_data(8)
        loader = DataLoader(TensorDataset(x), batch_size=2)
        with pytest.raises(UserError, match="own pace: leave balance away"):
            run.prepare(model, sgd(model), loader, plan=local_sgd(every=2), balance="auto")

    on_ranks(2, body)


def test_the_first_sizes_follow_measured_speeds(monkeypatch) -> None:
    speeds = iter([3e9, 1e9])
    monkeypatch.setattr(balance_wish, "flops_per_s", lambda device: next(speeds))

    def body(run: Run) -> tuple[int, ...]:
        ask(run, "auto")
        return run.batch_sizes

    first, second = on_ranks(2, body)
    assert first == second
    assert sorted(first) == [1, 3]


def test_ranks_that_ask_for_different_things_are_named() -> None:
    def body(run: Run) -> str:
        with pytest.raises(Disagreement) as found:
            ask(run, "auto" if run.rank else [0.5, 0.5])
        return str(found.value)

    for said in on_ranks(2, body):
        assert "'balance: [0.5, 0.5]' on rank 0, 'balance: auto' on rank 1" in said


def test_a_rank_that_peeks_into_the_loader_is_named(simulated) -> None:
    model, x, y = model_and_data(12 * 20)

    def body(run: Run) -> str:
        mine = copy.deepcopy(model)
        loader = DataLoader(TensorDataset(x, y), batch_size=4)
        _, optimizer, loader = run.prepare(mine, sgd(mine), loader, plan="dense", balance=EVEN)
        run.balance._own.run = run
        if run.rank == 1:
            next(iter(loader))
            run.balance._read = 0

        def steps() -> None:
            for batch in loader:
                mse(mine, batch).backward()
                optimizer.step()
                optimizer.zero_grad()

        with pytest.raises(Disagreement) as found:
            steps()
        return str(found.value)

    for said in on_ranks(3, body):
        assert "rank 0 is in pass 1 over the data and rank 1 in pass 2" in said


def test_a_stall_in_one_ranks_backward_counts_for_that_rank_alone() -> None:
    """Case 35: around ``backward()`` all ranks take the same time; own times tell who was slow."""
    import time

    model, x, y = model_and_data(6)
    stall_s = 0.15

    class Stalls(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out, slow):
            ctx.slow = slow
            return out.clone()

        @staticmethod
        def backward(ctx, grad):
            if ctx.slow:
                time.sleep(stall_s)
            return grad, None

    def body(run: Run):
        mine = copy.deepcopy(model)
        _, optimizer, _ = run.prepare(mine, sgd(mine), plan="dense", balance=BatchLaw(global_batch=3, window=1))
        around = []
        for _ in range(3):
            began_s = time.monotonic()
            nn.functional.mse_loss(Stalls.apply(mine(x[:1]), run.rank == 1), y[:1]).backward()
            around.append(time.monotonic() - began_s)
            optimizer.step()
        return min(around), run.balance.control.seconds

    for around_s, own_s in on_ranks(3, body):
        assert around_s > 0.5 * stall_s  # who waits may have begun later
        assert own_s[1] > 0.9 * stall_s
        assert own_s[0] < own_s[1] / 2
        assert own_s[2] < own_s[1] / 2
