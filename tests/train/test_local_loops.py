"""Local steps in loops of all kinds: checkpoints, speeds, accumulation, several optimizers, mixed precision."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.errors import Disagreement, PeerLost, UserError
from omnizen.strategies import local_sgd
from omnizen.train.local import LocalSteps
from omnizen.train.local_counts import StepCounts
from omnizen.train.run import Run
from tests.train.helpers import assert_equal, on_ranks, weights


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))


def make_data(samples: int = 90) -> TensorDataset:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True))


def prepare(run: Run, strategy, *, workers: int = 0):
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(make_data(), batch_size=3, shuffle=True, num_workers=workers)
    return run.prepare(model, optimizer, loader, plan=strategy, dense_below=0)


def steps(run: Run, model, optimizer, batches) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        losses = ((model(x) - y) ** 2).squeeze(1)
        run.note_losses(losses)
        losses.mean().backward()
        run.clip_grad_norm_(1.0)
        optimizer.step()


@pytest.mark.parametrize(
    ("strategy", "in_a_round"),
    [
        (local_sgd([4, 2, 1], pool=2.0), True),
        (local_sgd([4, 2, 1], pool=2.0), False),
        (local_sgd(2, share="delta", reducer="sbc(density=0.1)"), True),
        (local_sgd([3, 1, 1], share="delta", reducer="topk(density=0.1)", mean="steps"), False),
    ],
    ids=["biased, in a round", "biased", "sbc, in a round", "topk"],
)
def test_a_checkpoint_goes_on_bit_for_bit(tmp_path, strategy, in_a_round) -> None:
    folder = tmp_path / "saved"

    def straight(run: Run):
        model, optimizer, loader = prepare(run, strategy)
        steps(run, model, optimizer, loader)
        if in_a_round:
            share = run.driver.counts.now[run.rank]
            rest = iter(loader)
            steps(run, model, optimizer, itertools.islice(rest, share + (share + 1) // 2))
            run.save(folder)
            steps(run, model, optimizer, rest)
        else:
            run.save(folder)
            steps(run, model, optimizer, loader)
        steps(run, model, optimizer, loader)
        return weights(model), run.step, run.driver.rounds

    def resumed(run: Run):
        model, optimizer, loader = prepare(run, strategy)
        run.load(folder)
        for _ in range(2):
            steps(run, model, optimizer, loader)
        return weights(model), run.step, run.driver.rounds

    first = on_ranks(3, straight)
    second = on_ranks(3, resumed)
    for (a, steps_a, rounds_a), (b, steps_b, rounds_b) in zip(first, second, strict=True):
        assert (steps_a, rounds_a) == (steps_b, rounds_b)
        assert_equal(a, b)


class Clock:
    """Each rank's own: a step takes as long as it says."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds

    def __call__(self) -> float:
        return self.now


def test_numbers_of_steps_follow_speeds_also_when_these_change() -> None:
    def body(run: Run):
        strategy = local_sgd("speed", most=8)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(make_data(400), batch_size=2, shuffle=True)
        _, _, loader = run.prepare(model, optimizer, loader, plan=strategy)
        assert isinstance(run.driver, LocalSteps)
        run.driver.clock = clock = Clock([1.0, 4.0][run.rank])
        seen, read = [], []
        for epoch in range(2):
            if epoch:
                clock.seconds = [4.0, 1.0][run.rank]
            for x, y in loader:
                read.append((epoch, x))
                seen.append(run.driver.counts.now)
                ((model(x) - y) ** 2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                clock.now += clock.seconds
        return seen, run.driver.rounds, read

    (fast, rounds, one), (slow, also, two) = on_ranks(2, body)
    assert rounds == also
    assert fast[0] == slow[0] == (4, 4)
    assert (8, 2) in fast
    assert fast[-1] == slow[-1] == (2, 8)
    for epoch in range(2):
        rows = torch.cat([x for e, x in one + two if e == epoch])
        assert len(rows.unique(dim=0)) == len(rows) >= 398


def test_counts_do_not_follow_noise() -> None:
    counts = StepCounts("speed", 2, most=10)
    assert counts.tell([1.0, 2.0])
    assert counts.now == (10, 5)
    assert not counts.tell([1.0, 2.3])
    assert not counts.tell([0.0, 1.0]), "a rank without a step says nothing"
    assert counts.now == (10, 5)


def test_accumulation_needs_its_number_of_batches() -> None:
    def body(run: Run, strategy):
        model, optimizer, loader = prepare(run, strategy)
        for i, (x, y) in enumerate(loader):
            if i % 2 == 0:
                with run.no_sync():
                    ((model(x) - y) ** 2).mean().backward()
            else:
                ((model(x) - y) ** 2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return run.step, run.driver.rounds

    assert on_ranks(2, lambda run: body(run, local_sgd([2, 1], accumulate=2))) == [(10, 5), (5, 5)]

    def refused(run: Run) -> str:
        with pytest.raises(UserError) as caught:
            body(run, local_sgd(1))
        run._end(announce=False)
        return str(caught.value)

    assert "say how many batches a step has" in on_ranks(2, refused)[0]


def test_several_optimizers_share_at_the_end_of_a_step() -> None:
    def body(run: Run):
        model = make_model()
        pair = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[3].parameters(), lr=0.1)]
        run.prepare(model, pair, plan=local_sgd([2, 1]))
        torch.manual_seed(run.rank)
        for _ in range(3 * [2, 1][run.rank]):
            model(torch.randn(5, 4)).square().mean().backward()
            for optimizer in pair:
                optimizer.step()
                optimizer.zero_grad()
        return weights(model), run.driver.rounds

    (a, rounds, *_), (b, also) = on_ranks(2, body)
    assert rounds == also == 3
    assert_equal({k: v for k, v in a.items() if "num" not in k}, {k: v for k, v in b.items() if "num" not in k})


def test_bfloat16_autocast_and_schedules_work() -> None:
    def body(run: Run):
        model, optimizer, loader = prepare(run, local_sgd([3, 1], share="delta"))
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(2):
            for x, y in loader:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = ((model(x) - y) ** 2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
        return weights(model), optimizer.param_groups[0]["lr"]

    (a, lr), (b, _) = on_ranks(2, body)
    assert_equal(a, b)
    assert lr == pytest.approx(0.01 / 4)


def test_momentum_starts_anew_where_something_was_sent() -> None:
    def body(run: Run):
        model = nn.Linear(40, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        run.prepare(model, optimizer, plan=local_sgd(2, share="delta", reducer="sbc(density=0.1)"), dense_below=0)
        start = model.weight.detach().clone()
        generator = torch.Generator().manual_seed(run.rank)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 40, generator=generator)).mean().backward()
            optimizer.step()
        momentum = optimizer.state[model.weight]["momentum_buffer"]
        return momentum == 0, model.weight.detach() != start

    found = on_ranks(2, body)
    moved = found[0][1]
    assert torch.equal(moved, found[1][1])
    assert [int(masked.sum()) for masked, _ in found] == [4, 4]
    assert torch.equal(found[0][0] | found[1][0], moved), "where one rank sent, weights moved"


@pytest.mark.parametrize(
    ("strategy", "options", "said"),
    [
        (local_sgd([1, 2, 3]), {}, r"every=\[1, 2, 3\] gives 3 ranks their local steps, and there are 2"),
        (local_sgd([4, 1], pool=40.0), {}, "draws more samples than there are; at most 5"),
        (local_sgd([4, 1], pool=2.0), {"shuffle": False}, "plain DataLoader with shuffle=True"),
        (local_sgd(2), {"reduction": "sum"}, "reduction='mean' only"),
        (local_sgd(2), {"reads": lambda batch: {}}, "lazily pulled tables"),
        (local_sgd(2, share="delta", reducer="def-random-block"), {}, "moves weights before gradients"),
        (local_sgd([90, 1]), {}, None),
        (local_sgd([90, 1], accumulate=2), {}, "90 samples are too few for one round"),
    ],
)
def test_what_cannot_work_is_refused(strategy, options, said) -> None:
    def body(run: Run) -> None:
        model = make_model()
        loader = DataLoader(make_data(), batch_size=3, shuffle=options.get("shuffle", True))
        given = {name: value for name, value in options.items() if name != "shuffle"}
        _, _, loader = run.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), loader, plan=strategy, **given
        )
        for _ in loader:
            pass

    if said is None:
        on_ranks(2, body)
    else:
        with pytest.raises(UserError, match=said):
            on_ranks(2, body)


def test_losses_must_be_one_for_each_sample() -> None:
    def body(run: Run) -> None:
        _, _, loader = prepare(run, local_sgd([2, 1], pool=2.0))
        with pytest.raises(UserError, match="before a batch was read"):
            run.note_losses(torch.zeros(3))
        for x, _ in loader:
            for wrong in (torch.zeros(()), torch.zeros(len(x) + 1), torch.zeros(len(x), 1)):
                with pytest.raises(UserError, match=f"one loss for each of the batch's {len(x)} samples"):
                    run.note_losses(wrong)
            run.note_losses(torch.zeros(len(x)))

    on_ranks(2, body)


def test_ranks_that_ask_for_different_strategies_are_told_which() -> None:
    def body(run: Run) -> None:
        prepare(run, local_sgd([2, 1], pool=1.0 + run.rank))

    with pytest.raises(Disagreement, match=r"strategy: .*pool=1.0.* on rank 0, .*pool=2.0.* on rank 1"):
        on_ranks(2, body)


def test_survivors_of_a_round_hear_that_a_rank_is_lost() -> None:
    def body(run: Run) -> str:
        model, optimizer, loader = prepare(run, local_sgd(3))
        batches = iter(loader)
        steps(run, model, optimizer, itertools.islice(batches, 4))
        if run.rank == 1:
            run._end(announce=False)
            return "gone"
        with pytest.raises(PeerLost) as caught:
            steps(run, model, optimizer, batches)
        run._end(announce=False)
        return str(caught.value)

    said = on_ranks(3, body, timeout_s=3.0)
    assert said[1] == "gone"
    assert all("rank 1" in said[rank] for rank in (0, 2))
