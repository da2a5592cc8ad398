"""Stretches of training on thread ranks: every strategy, together stopped, the same told to all."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.measure.subject import Subject
from omnizen.plan.layouts import Layout, even
from omnizen.plan.tuner import Carrier, Done, Point, Settings, Train, Tuner
from omnizen.train.run import Run
from omnizen.train.tuning import SubjectTask, Trainer, Way
from omnizen.train.tuning.ending import LocalBoard
from omnizen.train.tuning.stretch import merged

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
Y = X @ torch.arange(6.0)


def mse(model, batch):
    return (model(batch[0]).squeeze(-1) - batch[1]).square().mean()


def subject(batch=4, **options):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(X, Y), batch_size=batch, shuffle=True)
    return Subject(nn.Linear(6, 1), {batch: [(X[:batch], Y[:batch])]}, mse, loader=loader, **options)


def trainers(size, body, **options):
    """Run ``body(trainer)`` on thread ranks."""
    board, given = LocalBoard(), subject()

    def work(comm):
        names = iter(range(1000))

        def begin():
            number = next(names)
            everyone = range(comm.size)
            return Run(comm.sub(everyone, f"gradients{number}"), comm.sub(everyone, f"control{number}"))

        task = SubjectTask(given, comm.rank, comm.size)
        way = lambda groups: Way(even(size, groups, 4 * size // groups))  # noqa: E731
        return body(Trainer(task, comm, way, begin=begin, board=board, **options))

    return run_ranks(size, work, timeout_s=10.0)


@pytest.mark.parametrize(
    "way",
    [Way(even(2, 1, 8)), Way(Layout(((0,), (1,)), (6, 2))), Way(even(2, 1, 8), every=(3, 1))],
    ids=lambda way: way.title,
)
def test_every_strategy_learns_and_all_ranks_hear_the_same(way):
    def body(trainer):
        stretch = trainer.stretch(way, Point(1, 0.02, 0.5), 0.25, trainer.first())
        return stretch.updates, stretch.staleness, stretch.end, trainer.task.place

    one, two = trainers(2, body)
    updates, staleness, end, _ = one
    assert updates == two[0]
    assert all(torch.equal(end[name], two[2][name]) for name in end)
    losses = [u.loss for u in updates]
    assert len(losses) > 10
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert bool(staleness) == (way.title == "2 groups")
    read = [one[3], two[3]]
    assert sum(read) == sum(u.samples for u in updates)  # each loss is of samples that were read


def test_a_step_that_is_too_large_ends_the_stretch_and_says_so():
    def body(trainer):
        stretch = trainer.stretch(Way(even(2, 1, 8)), Point(1, 50.0, 0.9), 60.0, trainer.first())
        return stretch.result()

    for result in trainers(2, body):
        assert result.updates < 100
        assert not result.losses[-1] < 1e6


def test_what_cannot_be_carried_out_is_a_result():
    def body(trainer):
        return trainer.stretch(Way(even(2, 1, 8)), Point(1, 0.1, 2.0), 1.0, trainer.first()).result()

    for result in trainers(2, body):
        assert "momentum: a number in [-1, 1), got 2.0" in result.error
        assert math.isinf(result.score(1))


def test_one_rank_that_is_asked_to_end_ends_all():
    def body(trainer):
        if trainer.comm.rank == 1:
            trainer._asked = lambda: True
        stretch = trainer.stretch(Way(even(2, 1, 8)), Point(1, 0.01, 0.0), 60.0, trainer.first())
        return stretch.interrupted, stretch.seconds < 30

    assert trainers(2, body) == [(True, True)] * 2


def test_a_tuner_is_carried_out_to_its_end():
    def body(trainer):
        tuner = Tuner(Settings(workers=2, steps=(0.05, 0.005), probe_s=0.1, horizon_s=2.0, steady=False))
        carrier = Carrier(tuner, trainer.train, trainer.first())
        while carrier.step() is not None:
            pass
        return tuner.next(), [type(action) for action, _ in tuner.told][-1], tuner.overhead

    for done, last, overhead in trainers(2, body):
        assert isinstance(done, Done)
        assert last is Train
        assert overhead < 0.2  # a stretch ends a step late


def test_each_sample_once_an_epoch_whatever_the_batches():
    tasks = [SubjectTask(subject(), rank, 3) for rank in range(3)]
    source = [task.indices(0) for task in tasks]
    epochs = [[next(s) for s in source for _ in range(16)] for _ in range(2)]
    assert all(sorted(epoch) == list(range(48)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    batches = tasks[0].batches(5)
    first = [next(batches) for _ in range(2)]
    assert tasks[0].place == 10
    went_on = next(tasks[0].batches(3))
    again = list(zip(range(13), tasks[0].indices(0), strict=False))
    assert torch.equal(torch.cat([first[0][0], first[1][0], went_on[0]]), X[[index for _, index in again]])


def test_losses_of_teams_come_in_order_of_time_weighted_by_samples():
    way = Way(Layout(((0,), (1, 2)), (8, 4, 4)))
    taken = [[(1.0, 4.0), (2.0, 3.0)], [(1.5, 2.0), (9.0, 1.0)], [(1.4, 4.0)]]
    assert [(u.at_s, u.loss, u.samples) for u in merged(taken, way)] == [
        (1.0, 4.0, 8),
        (1.5, 3.0, 8),
        (2.0, 3.0, 8),
    ]


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (lambda model: torch.optim.Adagrad(model.parameters()), "Adagrad has none"),
        (lambda model: [torch.optim.SGD(model.parameters())], "must return one torch optimizer"),
        (
            lambda model: torch.optim.SGD(
                [{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 2.0}]
            ),
            "one step size is tuned",
        ),
    ],
)
def test_optimizers_that_cannot_be_tuned_are_refused(optimizer, says):
    with pytest.raises(UserError, match=says):
        SubjectTask(subject(optimizer=optimizer), 0, 1)


def test_batches_of_the_subject_itself_are_passed_over_again_and_again():
    plain = Subject(nn.Linear(6, 1), {4: ["a", "b"]}, mse)
    task = SubjectTask(plain, 0, 1)
    batches = task.batches(4)
    assert [next(batches) for _ in range(3)] == ["a", "b", "a"]
    assert next(task.batches(4)) == "b"
    assert not task.divisible
