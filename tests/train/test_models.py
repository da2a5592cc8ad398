"""Habits of real models and loops, against one process on the union batch."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from omnizen.errors import Disagreement, OmnizenError, UserError
from omnizen.protocols import Ready
from omnizen.train.router import Routing, build
from omnizen.train.run import Run
from omnizen.types import Dense, Reduced, State
from tests.train.helpers import (
    alone,
    assert_close,
    assert_equal,
    make_run,
    on_ranks,
    run_ranks,
    sgd,
    together,
    weights,
)


def rows(*shape: int):
    return torch.randn(*shape, dtype=torch.float64)


def union(shares):
    return [torch.cat(step) for step in zip(*shares, strict=True)]


def test_small_buckets_and_many_layers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)]).double()
    shares = [[rows(4, 8) for _ in range(3)] for _ in range(3)]

    def loss(m, x):
        return m(x).square().mean()

    def momentum(m):
        return torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)

    results = together(model, shares, loss, momentum)
    for result in results:
        assert_equal(result, results[0])
        assert_close(result, alone(model, union(shares), loss, momentum))


@pytest.mark.parametrize("plan", ["dense", "zen-coo"])
def test_accumulation_synchronises_once_a_step(plan) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(20, 4, sparse=True), nn.Linear(4, 2)).double()
    shares = [[torch.randint(20, (3, 2)) for _ in range(6)] for _ in range(2)]

    def body(run: Run):
        mine = copy.deepcopy(model)
        optimizer = sgd(mine)
        run.prepare(mine, optimizer, plan=plan)
        rounds = []
        run.engine.observers.append(rounds.append)
        for step in range(2):
            optimizer.zero_grad()
            micro = shares[run.rank][3 * step : 3 * step + 3]
            with run.no_sync():
                for ids in micro[:-1]:
                    (mine(ids).square().mean() / 3).backward()
            (mine(micro[-1]).square().mean() / 3).backward()
            optimizer.step()
        return len(rounds), weights(mine)

    whole = [torch.cat([s for share in shares for s in share[3 * i : 3 * i + 3]]) for i in range(2)]
    for count, result in on_ranks(2, body):
        assert count == 2
        assert_close(result, alone(model, whole, lambda m, ids: m(ids).square().mean()))


class TwoHeads(nn.Module):
    """Case 47: returns (a, b); the loss may look at a only."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)
        self.double()

    def forward(self, x):
        h = self.body(x).tanh()
        return self.a(h), self.b(h)


def test_loss_on_one_of_two_outputs_with_accumulation() -> None:
    torch.manual_seed(0)
    model = TwoHeads()
    shares = [[rows(2, 3) for _ in range(3)] for _ in range(2)]

    def body(run: Run):
        mine = copy.deepcopy(model)
        optimizer = torch.optim.SGD(mine.parameters(), 0.1, weight_decay=0.1)
        run.prepare(mine, optimizer, plan="dense")
        with run.no_sync():
            for x in shares[run.rank][:2]:
                (mine(x)[0].square().mean() / 3).backward()
        (mine(shares[run.rank][2])[0].square().mean() / 3).backward()
        assert mine.b.weight.grad is None, "unused everywhere: None, as in one process, so no weight decay"
        optimizer.step()
        return weights(mine)

    whole = [torch.cat([x for share in shares for x in share])]
    expected = alone(
        model,
        whole,
        lambda m, x: m(x)[0].square().mean(),
        lambda m: torch.optim.SGD(m.parameters(), 0.1, weight_decay=0.1),
    )
    for result in on_ranks(2, body):
        assert_close(result, expected)


def test_parameters_used_on_one_rank_only() -> None:
    torch.manual_seed(0)
    model = TwoHeads()
    xs = [rows(2, 3) for _ in range(2)]
    shares = [[(x, rank) for x in xs] for rank in range(2)]
    results = together(model, shares, lambda m, pair: m(pair[0])[pair[1]].square().mean())
    expected = alone(model, xs, lambda m, x: (m(x)[0].square().mean() + m(x)[1].square().mean()) / 2)
    for result in results:
        assert_close(result, expected)


def test_flags_survive_a_reducer_that_leaves_elements_out() -> None:
    @dataclass(frozen=True)
    class Nothing:
        name = "nothing"
        takes = (Dense,)
        agrees = conserves = True
        exact = False

        def init(self, like):
            return State()

        def start(self, x, state, comm, step):
            return Ready(Reduced(Dense(torch.zeros_like(x.values)), None, state))

    def body(run: Run):
        model = TwoHeads()
        run.prepare(model, sgd(model), plan="dense")
        run.engine.route(build(model, Routing({}), lambda scheme, values: Nothing()))
        model(rows(1, 3))[0].sum().backward() if run.rank else model.body(rows(1, 3)).sum().backward()
        return [name for name, p in model.named_parameters() if p.grad is None]

    assert on_ranks(2, body) == [["b.weight", "b.bias"]] * 2


def test_shared_and_frozen_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)
            self.out = nn.Linear(4, 9)
            self.out.weight = self.table.weight
            self.scale = nn.Linear(4, 4)
            self.scale.weight.requires_grad_(False)
            self.double()

        def forward(self, ids):
            return nn.functional.cross_entropy(self.out(self.scale(self.table(ids))), ids)

    torch.manual_seed(0)
    model = Tied()
    shares = [[torch.randint(9, (5,)) for _ in range(3)] for _ in range(2)]
    for plan in ("dense", "zen-coo"):
        for result in together(model, shares, lambda m, ids: m(ids), plan=plan):
            assert_close(result, alone(model, union(shares), lambda m, ids: m(ids)))


def test_unfreezing_after_prepare_is_refused() -> None:
    def work(comm) -> None:
        run, model = make_run(comm), TwoHeads()
        model.b.weight.requires_grad_(False)
        run.prepare(model, sgd(model), plan="dense")
        model.b.weight.requires_grad_(True)
        with pytest.raises(UserError, match=r"b\.weight was frozen"):
            model(rows(1, 3))[0].sum().backward()

    run_ranks(2, work)


def test_batchnorm_statistics_are_averaged() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    shares = [[rows(4, 3) + rank for _ in range(2)] for rank in range(2)]
    results = together(model, shares, lambda m, x: m(x).square().mean())
    assert_equal(*results)
    expected = alone(model, union(shares), lambda m, x: m(x).square().mean())
    for name in ("0.running_mean", "0.num_batches_tracked"):  # the variance of a union is no mean of variances
        torch.testing.assert_close(results[0][name], expected[name], rtol=1e-9, atol=1e-12)


def test_buffers_stay_when_the_model_is_evaluated() -> None:
    def body(run: Run):
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
        run.prepare(model, sgd(model), plan="dense")
        model.eval()
        model(torch.ones(2, 3)).sum().backward()
        return model[0].num_batches_tracked.item()

    assert on_ranks(2, body) == [0, 0]


def test_bfloat16_autocast_and_half_parameters() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1))
    shares = [[torch.randn(4, 6)] for _ in range(2)]

    def loss(m, x):
        with torch.autocast("cpu", torch.bfloat16):
            return m(x).square().mean()

    results = together(model, shares, loss)
    assert_equal(*results)
    assert_close(results[0], alone(model, union(shares), loss), 1e-2)  # bfloat16 activations: 8 bits
    half = copy.deepcopy(model).to(torch.bfloat16)
    shares = [[x.to(torch.bfloat16) for x in share] for share in shares]
    results = together(half, shares, lambda m, x: m(x).square().mean())
    assert results[0]["0.weight"].dtype == torch.bfloat16
    assert_equal(*results)


def test_an_overflow_on_one_rank_makes_all_skip_the_step() -> None:
    model = nn.Linear(2, 1, bias=False)

    def body(run: Run):
        mine = copy.deepcopy(model)
        optimizer = sgd(mine)
        run.prepare(mine, optimizer, plan="dense")
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        x = torch.full((1, 2), float("inf") if run.rank else 1.0)
        scaler.scale(mine(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return weights(mine), scaler.get_scale(), run.step

    for result, scale, step in on_ranks(2, body):
        assert_equal(result, weights(model))
        assert (scale, step) == (4.0, 0)


def test_two_synchronised_backwards_add_up() -> None:
    torch.manual_seed(0)
    model = TwoHeads()
    xs = [rows(2, 3) for _ in range(2)]

    def body(run: Run):
        mine = copy.deepcopy(model)
        run.prepare(mine, optimizer := sgd(mine), plan="dense")
        for head in range(2):
            mine(xs[run.rank])[head].square().mean().backward()
        optimizer.step()
        return weights(mine)

    expected = alone(model, [torch.cat(xs)], lambda m, x: sum(out.square().mean() for out in m(x)))
    for result in on_ranks(2, body):
        assert_close(result, expected)


def test_a_backward_that_broke_off_is_named() -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("broke")

    def work(comm) -> None:
        run, model = make_run(comm), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        run.prepare(model, sgd(model), plan="dense")
        with pytest.raises(RuntimeError, match="broke"):
            model[1](Breaks.apply(model[0](torch.ones(1, 2)))).sum().backward()
        with pytest.raises(OmnizenError, match="before the one before it had ended"):
            model(torch.ones(1, 2)).sum().backward()

    run_ranks(2, work)


def test_start_sends_only_what_differs() -> None:
    built = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(torch.bfloat16)

    def body(run: Run):
        model = copy.deepcopy(built)
        if run.rank in (2, 4):
            with torch.no_grad():
                model[0].bias.add_(run.rank)
        run.prepare(model, sgd(model), plan="dense")
        return weights(model), run.started

    results = on_ranks(5, body)
    for result, started in results:
        assert_equal(result, results[0][0])
        assert started.names == ("0.bias",)
    assert sum(started.sent_bytes for _, started in results) == 2 * 4 * 2


def test_models_that_differ_are_named_on_all_ranks() -> None:
    """Case 44: another size of one tensor."""

    def work(comm) -> str:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3 if comm.rank == 1 else 4))
        with pytest.raises(Disagreement) as found:
            make_run(comm).prepare(model, sgd(model), plan="dense")
        return str(found.value)

    for said in run_ranks(3, work):
        assert "'1.weight [4, 2] float32' on rank 0 and '1.weight [3, 2] float32' on rank 1" in said


def test_seeds_that_differ_are_named() -> None:
    def work(comm) -> None:
        model = nn.Linear(2, 2)
        with pytest.raises(Disagreement, match="'seed: 0' on rank 0, 'seed: 1' on rank 1"):
            make_run(comm, seed=comm.rank).prepare(model, sgd(model), plan="dense")

    run_ranks(2, work)


def test_plans_that_differ_are_named() -> None:
    def work(comm) -> None:
        model = nn.Linear(2, 2)
        with pytest.raises(Disagreement, match="'plan: zen-coo' on rank 0, 'plan: dense' on rank 1"):
            make_run(comm).prepare(model, sgd(model), plan="dense" if comm.rank else "zen-coo")

    run_ranks(2, work)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"plan": "zen-co"}, "did you mean 'zen-coo'"),
        ({"plan": "plan.tml"}, "'plan.tml' looks like the path of a file; the files of plans.* end in .toml"),
        ({"plan": "runs/first"}, "'runs/first' looks like the path of a file"),
        ({"plan": ""}, "got an empty text"),
        ({"plan": "topk(densty=0.01)"}, "did you mean 'density'"),
        ({"plan": "dense", "reduction": "avg"}, "allowed: mean, sum"),
        ({"plan": "dense", "values": "float8"}, "float16"),
    ],
)
def test_unknown_choices_name_the_nearest(options, said) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(UserError, match=said):
        make_run(run_ranks(1, lambda comm: comm)[0]).prepare(model, sgd(model), **options)


def test_small_tensors_travel_with_the_large_one_that_follows() -> None:
    """The last layer's small tensors would only delay the large one by a message of their own."""
    table = nn.Embedding(5, 3)
    model = nn.Sequential(nn.Linear(3, 100), nn.Linear(100, 400), nn.Linear(400, 2), table)
    units = build(model, Routing({}, bucket_bytes=50_000))
    assert units.pop().name == "3.weight", "an embedding comes last, wherever the model names it"
    assert [[slot.name for slot in unit.layout.slots] for unit in units] == [
        ["2.bias", "2.weight", "1.bias", "1.weight"],
        ["0.bias", "0.weight"],
    ]
