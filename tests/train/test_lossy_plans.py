"""Lossy schemes in training: by parameter, with accumulation, mixed precision, resuming and bad values."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from omnizen import catalog
from omnizen.comm.meter import Metered
from omnizen.errors import NotFiniteWarning, UserError
from omnizen.train.router import by_patterns, by_scheme
from omnizen.types import Step
from tests.train.helpers import assert_equal, make_run, on_ranks, run_ranks, weights

LOSSY = [name for name in catalog.schemes("dense", lossy=True) if catalog.REDUCERS[name].lossy]


class Net(nn.Module):
    """A matrix that is shortened, and a small one and biases that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(40, 60)
        self.out = nn.Linear(60, 3)

    def forward(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.out(self.hidden(x).relu()), y)


torch.manual_seed(0)
FIRST = Net()  # made once: threads share the generator


def model():
    return copy.deepcopy(FIRST)


def batches(rank, steps, examples=16):
    rng = torch.Generator().manual_seed(50 + rank)
    centers = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    found = []
    for _ in range(steps):
        y = torch.randint(3, (examples,), generator=rng)
        found.append((centers[y] + torch.randn(examples, 40, generator=rng), y))
    return found


def train(run, plan, steps=6, lr=0.1, **options):
    mine = model()
    optimizer = torch.optim.SGD(mine.parameters(), lr=lr)
    run.prepare(mine, optimizer, plan=plan, **options)
    losses = []
    for batch in batches(run.rank, steps):
        optimizer.zero_grad()
        loss = mine(batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return mine, losses


def test_top_k_shortens_the_large_parameters_alone_and_equals_a_plain_loop():
    steps, k, lr = 5, 24, 0.1
    copies = [model() for _ in range(2)]
    residuals = [torch.zeros(60 * 40) for _ in range(2)]
    data = [batches(rank, steps) for rank in range(2)]
    for n in range(steps):
        for rank, each in enumerate(copies):
            each.zero_grad()
            each(data[rank][n]).backward()
        grads = [[p.grad for p in each.parameters()] for each in copies]
        mean = [sum(pair) / 2 for pair in zip(*grads, strict=True)]
        sent = []
        for rank in range(2):
            total = residuals[rank] + grads[rank][0].view(-1)
            kept = torch.zeros_like(total)
            rows = total.abs().topk(k).indices
            kept[rows] = total[rows]
            residuals[rank] = total - kept
            sent.append(kept)
        mean[0] = (sum(sent) / 2).view(60, 40)
        with torch.no_grad():
            for each in copies:
                for p, g in zip(each.parameters(), mean, strict=True):
                    p.sub_(g, alpha=lr)

    def body(run):
        mine, _ = train(run, "topk", steps, lr)
        units = {unit.name: unit for unit in run.engine.units}
        assert units["hidden.weight"].reducer.name == "topk"
        return weights(mine)

    for found in on_ranks(2, body):
        for name, expected in weights(copies[0]).items():
            torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scheme", LOSSY)
def test_every_lossy_scheme_trains_with_equal_weights_on_all_ranks(scheme):
    lr = {"dgc": 0.02, "sbc": 0.02, "def-random-block": 0.02, "signsgd": 0.003}.get(scheme, 0.2)

    def body(run):
        mine, losses = train(run, scheme, 25, lr)
        with run.averaged():
            return weights(mine), losses

    first, *others = on_ranks(3, body)
    for found, _ in others:
        assert_equal(first[0], found)
    assert sum(first[1][-3:]) < 0.9 * sum(first[1][:3])


@pytest.mark.parametrize("scheme", ["topk", "dgc", "sbc", "def-random-block", "stc", "qsgd", "topk(density=0.05)"])
def test_five_steps_save_load_five_steps_equal_ten(scheme, tmp_path):
    def steps(run, mine, optimizer, first, last):
        for n, batch in enumerate(batches(run.rank, last)[first:], first):
            optimizer.zero_grad()
            mine(batch).backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.05 if n < 4 else 0.02  # a schedule moves on before the save

    def straight(run):
        mine = model()
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.05)
        run.prepare(mine, optimizer, plan=scheme)
        steps(run, mine, optimizer, 0, 10)
        return weights(mine)

    def halves(run):
        mine = model()
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.05)
        run.prepare(mine, optimizer, plan=scheme)
        steps(run, mine, optimizer, 0, 5)
        run.save(tmp_path / "five")
        steps(run, mine, optimizer, 5, 7)  # goes astray
        run.load(tmp_path / "five")
        steps(run, mine, optimizer, 5, 10)
        return weights(mine)

    for whole, resumed in zip(on_ranks(2, straight), on_ranks(2, halves), strict=True):
        assert_equal(whole, resumed)


def test_detached_feedback_equals_the_authors_rule():
    """y = x - lambda e; m <- mu m + (g + wd y); p = e + lr m; e <- p off the block; x <- x - mean of p's block."""
    steps, lr, mu, ahead, decay = 6, 0.05, 0.8, 0.5, 0.01
    scheme = f"def-random-block(density=0.1, momentum={mu}, detached={ahead}, weight_decay={decay})"
    block = catalog.selector("random-block", density=0.1)
    copies = [model() for _ in range(2)]
    x = copies[0].hidden.weight.detach().clone()
    e, m = [torch.zeros_like(x) for _ in range(2)], [torch.zeros_like(x) for _ in range(2)]
    data = [batches(rank, steps) for rank in range(2)]
    for n in range(steps):
        delta, others = torch.zeros_like(x), None
        support = block.support(x.numel(), Step(n, 7, "hidden.weight"))
        for rank, each in enumerate(copies):
            with torch.no_grad():
                each.hidden.weight.copy_(x - ahead * e[rank])
            each.zero_grad()
            each(data[rank][n]).backward()
            g = each.hidden.weight.grad + decay * each.hidden.weight.detach()
            m[rank] = mu * m[rank] + g
            p = e[rank] + lr * m[rank]
            delta.view(-1)[support] += p.view(-1)[support] / 2
            p.view(-1)[support] = 0.0
            e[rank] = p
            rest = [q.grad / 2 for name, q in each.named_parameters() if name != "hidden.weight"]
            others = rest if others is None else [a + b for a, b in zip(others, rest, strict=True)]
        x = x - delta
        with torch.no_grad():
            for each in copies:
                names = [q for name, q in each.named_parameters() if name != "hidden.weight"]
                for q, g in zip(names, others, strict=True):
                    q.sub_(g, alpha=lr)

    def body(run):
        mine, _ = train(run, scheme, steps, lr)
        own = mine.hidden.weight.detach().clone()
        with run.detached.attached():
            shared = mine.hidden.weight.detach().clone()
        with run.averaged():
            evaluated = mine.hidden.weight.detach().clone()
        assert torch.equal(mine.hidden.weight, own)
        return own, shared, evaluated

    for rank, (own, shared, evaluated) in enumerate(on_ranks(2, body, seed=7)):
        torch.testing.assert_close(shared, x, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(own, x - ahead * e[rank], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(evaluated, x - (e[0] + e[1]) / 2, rtol=1e-5, atol=1e-6)


def test_four_micro_batches_are_compressed_once():
    def body(run):
        mine = model()
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
        run.prepare(mine, optimizer, plan="topk")
        for x, y in batches(run.rank, 4):
            parts = list(zip(x.chunk(4), y.chunk(4), strict=True))
            optimizer.zero_grad()
            with run.no_sync():
                for part in parts[:-1]:
                    (mine(part) / 4).backward()
            (mine(parts[-1]) / 4).backward()
            run.clip_grad_norm_(100.0)
            optimizer.step()
        return weights(mine)

    whole = on_ranks(2, lambda run: weights(train(run, "topk", 4)[0]))
    for micro, large in zip(on_ranks(2, body), whole, strict=True):
        for name in micro:
            torch.testing.assert_close(micro[name], large[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", ["topk", "dgc"])
def test_memory_is_kept_without_the_loss_s_scale(scheme):
    """A scale that doubles every other step changes no bit; a step that overflows leaves no trace."""

    def body(run, scaled):
        mine = model()
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=2, enabled=scaled)
        run.prepare(mine, optimizer, plan=scheme, scaler=scaler)
        for n, (x, y) in enumerate(batches(run.rank, 6)):
            if n == 2:
                if not scaled:
                    continue
                x = x * 1e30  # with the scale, more than float32 holds
            optimizer.zero_grad()
            scaler.scale(mine((x, y))).backward()
            scaler.step(optimizer)
            scaler.update()
        return weights(mine), scaler.get_scale()

    plain = on_ranks(2, lambda run: body(run, False))
    for (with_scale, last), (without, _) in zip(on_ranks(2, lambda run: body(run, True)), plain, strict=True):
        assert last != 2.0**40
        assert_equal(with_scale, without)


@pytest.mark.parametrize("scheme", ["topk", "random-block", "sbc", "onebit"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_values_are_told_by_name_and_step_and_leave_memory_alone(scheme, bad):
    def body(run):
        mine = model()
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.0)
        run.prepare(mine, optimizer, plan=scheme)
        for n, (x, y) in enumerate(batches(run.rank, 4)):
            if n == 2 and run.rank == 1:
                x[0, 0] = bad
            (unit,) = [u for u in run.engine.units if u.name == "hidden.weight"]
            before = copy.deepcopy(unit.state)
            optimizer.zero_grad()
            mine((x, y)).backward()
            assert bool(torch.isfinite(mine.hidden.weight.grad).all()) == (n != 2)
            if n == 2:
                for key, tensor in unit.state.slots.items():
                    assert torch.equal(tensor, before.slots[key])
            else:
                optimizer.step()

    with warnings.catch_warnings(record=True) as caught:  # of all threads
        warnings.simplefilter("always")
        on_ranks(2, body)
    told = [str(w.message) for w in caught if w.category is NotFiniteWarning]
    assert len(told) == 2
    start = "hidden.weight: the gradient of rank 1 holds NaN or infinity at step 2"
    assert all(text.startswith(start) for text in told)


def test_bad_rows_of_a_table_are_told_by_name_rank_and_step():
    def body(run):
        mine = nn.Sequential(nn.Embedding(50, 16, sparse=True))
        run.prepare(mine, torch.optim.SGD(mine.parameters(), lr=0.0), plan="powersgd")
        for n in range(3):
            loss = mine(torch.arange(20)).sum()
            (loss * float("nan") if n == 1 and run.rank == 1 else loss).backward()
            assert bool(torch.isfinite(mine[0].weight.grad.to_dense()).all()) == (n != 1)
            mine.zero_grad()

    with pytest.warns(NotFiniteWarning) as caught:
        on_ranks(2, body)
    (told,) = [str(w.message) for w in caught]
    assert told.startswith("0.weight: the gradient of rank 1 holds NaN or infinity at step 0")


def test_a_dict_gives_each_parameter_the_first_pattern_that_matches():
    routing = by_patterns(
        model(), {"hidden.bias": "zen-coo", "hidden.*": "onebit", "*.weight": "topk"}, dense_below=100
    )
    assert dict(routing.schemes) == {
        "hidden.weight": "onebit", "hidden.bias": "zen-coo", "out.weight": "topk", "out.bias": "dense",
    }  # fmt: skip
    with pytest.raises(UserError, match=r"no parameter is called 'hiden.weight': .*did you mean 'hidden.weight'"):
        by_patterns(model(), {"hiden.weight": "topk"})
    with pytest.raises(UserError, match="did you mean 'topk'"):
        by_patterns(model(), {"*": "topkk"})

    def body(run):
        train(run, {"out.*": "dense", "*": "topk(density=0.5)"}, 2)
        return {unit.name: unit.reducer.name for unit in run.engine.units}

    assert on_ranks(2, body)[0]["hidden.weight"] == "topk"


def test_sparse_tables_are_left_to_their_rows():
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 20, sparse=True)
            self.dense_table = nn.Embedding(100, 20)
            self.scalar = nn.Parameter(torch.tensor(1.0))

    assert dict(by_scheme(Words(), "topk").schemes) == {
        "scalar": "dense", "table.weight": "agsparse", "dense_table.weight": "topk",
    }  # fmt: skip
    assert by_scheme(Words(), "topk", dense_below=0).schemes["scalar"] == "topk"


@pytest.mark.parametrize("scheme", LOSSY)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_0d_channels_last_and_other_types(scheme, dtype):
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))
            self.kernel = nn.Parameter(torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last))

    first = Odd().to(dtype)

    def body(run):
        mine = copy.deepcopy(first)
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.01)
        run.prepare(mine, optimizer, plan=scheme, dense_below=0)
        for n in range(2):
            optimizer.zero_grad()
            weight = torch.randn(mine.kernel.shape, generator=torch.Generator().manual_seed(n + 7 * run.rank))
            ((mine.kernel * weight.to(dtype)).sum() * mine.scale).backward()
            optimizer.step()
        assert mine.kernel.grad.dtype == dtype
        assert mine.kernel.grad.is_contiguous(memory_format=torch.channels_last)
        assert all(
            t.dtype != torch.float16 and t.dtype != torch.bfloat16
            for u in run.engine.units
            for t in u.state.slots.values()
        )
        with run.averaged():
            return weights(mine)

    first, second = on_ranks(2, body)
    assert_equal(first, second)
    assert all(torch.isfinite(t).all() for t in first.values())


def test_momentum_of_the_optimizer_is_refused_where_the_scheme_has_its_own():
    def body(run):
        mine = model()
        with pytest.raises(UserError, match=r"dgc keeps the momentum of hidden\.weight itself"):
            run.prepare(mine, torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9), plan="dgc")

    on_ranks(2, body)


def test_alone_a_scheme_with_momentum_says_that_it_does_nothing():
    def body(run):
        with pytest.warns(UserWarning, match="dgc keeps momentum where gradients are shortened; with one rank"):
            train(run, "dgc", 1)

    on_ranks(1, body)


def test_bytes_fall():
    def received(plan):
        def body(comm):
            run = make_run(comm)
            train(run, plan, 1)
            before = comm.reading()
            mine, optimizer = run.model, run.optimizers[0]
            optimizer.zero_grad()
            mine(batches(run.rank, 1)[0]).backward()
            moved = (comm.reading() - before).traffic.rx_bytes
            optimizer.step()
            run.close()
            return moved

        return run_ranks(2, body, wrap=Metered)[0]

    assert received("topk") < 0.25 * received("dense")
