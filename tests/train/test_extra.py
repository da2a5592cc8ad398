"""What users hand to a run beside model and data: objects in checkpoints, numbers to record, names of rows."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR

from omnizen.errors import UserError
from omnizen.events import StepEvent, read_events
from tests.train.helpers import on_ranks


def start(run, plan="dense"):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run.prepare(model, optimizer, plan=plan)
    return model, optimizer, MultiStepLR(optimizer, [3, 6])


def rates(run, prepared, steps):
    model, optimizer, scheduler = prepared
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
        seen.append(optimizer.param_groups[0]["lr"])
    return seen


def test_a_scheduler_goes_on_where_it_was(tmp_path: Path) -> None:
    def first(run):
        prepared = start(run)
        seen = rates(run, prepared, 2)
        run.save(tmp_path / "c", extra={"scheduler": prepared[2]})
        return seen

    def second(run):
        prepared = start(run)
        with pytest.raises(UserError, match=r"state of 'scheduler', which would be lost"):
            run.load(tmp_path / "c")
        with pytest.raises(UserError, match=r"state of 'scheduler', which would be lost"):
            run.load(tmp_path / "c", extra={"shceduler": prepared[2]})
        run.load(tmp_path / "c", extra={"scheduler": prepared[2]})
        return rates(run, prepared, 6)

    whole = on_ranks(2, lambda run: rates(run, start(run), 8))
    for head, tail, expected in zip(on_ranks(2, first), on_ranks(2, second), whole, strict=True):
        assert head + tail == expected
        assert len(set(expected)) == 3, "the schedule changed twice"


class Keeps:
    def __init__(self, kept):
        self.kept = kept

    def state_dict(self):
        return {"kept": self.kept}

    def load_state_dict(self, state):
        raise KeyError("other shape")


def test_what_cannot_be_kept_is_refused_on_all_ranks(tmp_path: Path) -> None:
    def body(run):
        start(run)
        with pytest.raises(UserError, match="objects by name"):
            run.save(tmp_path / "c", extra=[1])
        with pytest.raises(UserError, match="no state_dict"):
            run.save(tmp_path / "c", extra={"epoch": 3})
        with pytest.raises(UserError, match="cannot be read back safely"):
            run.save(tmp_path / "c", extra={"mine": Keeps(Path("x") if run.rank else 1)})
        assert not (tmp_path / "c").exists()
        run.save(tmp_path / "c", extra={"mine": Keeps(1)})
        with pytest.raises(UserError, match=r"does not take its saved state: KeyError: 'other shape'"):
            run.load(tmp_path / "c", extra={"mine": Keeps(1)})
        run.save(tmp_path / "plain")
        with pytest.raises(UserError, match="no such state: got 'mine'"):
            run.load(tmp_path / "plain", extra={"mine": Keeps(1)})

    on_ranks(2, body)


def test_rank_0_says_that_a_schedule_is_left_out(tmp_path: Path, caplog) -> None:
    def body(run):
        _, _, scheduler = start(run)
        run.save(tmp_path / "c")
        run.save(tmp_path / "c", extra={"scheduler": scheduler})

    with caplog.at_level(logging.INFO, logger="omnizen"):
        on_ranks(2, body)
    assert [r.message for r in caplog.records if "run.save()" in r.message] == [caplog.records[-1].message]


def test_any_number_is_logged_by_its_name(tmp_path: Path) -> None:
    def body(run):
        model, optimizer, _ = start(run)
        for step in range(2):
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            run.log(loss=loss, norm=torch.tensor(2.0 + step))
            optimizer.step()
            run.log(lr=0.5)
        with pytest.raises(UserError, match=r"norm: run\.log\(\) takes one number"):
            run.log(norm=torch.ones(2))

    on_ranks(2, body, run_dir=tmp_path)
    steps = [e for e in read_events(tmp_path / "events-rank1.jsonl").events if isinstance(e, StepEvent)]
    assert [e.logged for e in steps] == [{"norm": 2.0, "lr": 0.5}, {"norm": 3.0, "lr": 0.5}]
    assert all(e.loss is not None for e in steps)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(tmp_path / "tb"))
    log.Reload()
    assert [e.value for e in log.Scalars("norm")] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        (lambda batch: batch, "must return rows by parameter name.*a Tensor"),
        (lambda batch: {"wieght": batch}, "no parameter of the model: got 'wieght'; did you mean 'weight'"),
        (lambda batch: {"weight": [1]}, "rows of weight as a tensor; it gave a list"),
    ],
)
@pytest.mark.parametrize("plan", ["auto", "dense"])
def test_named_rows_are_looked_at_under_every_plan(plan, reads, said) -> None:
    def body(run):
        table = nn.Embedding(6, 2, sparse=True)
        batches = [torch.tensor([1, 2])] * 2
        optimizer = torch.optim.SGD(table.parameters(), 0.1)
        _, _, loader = run.prepare(table, optimizer, batches, plan=plan, reads=reads)
        with pytest.raises(UserError, match=said):
            next(iter(loader))

    on_ranks(1, body)
