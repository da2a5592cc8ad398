"""What a step took, as events tell it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from omnizen.comm.meter import Metered
from omnizen.errors import NotWrittenWarning, UserError
from omnizen.events import EndEvent, RunEvent, StepEvent, read_events
from omnizen.spans import Span
from omnizen.train.record import exposed
from omnizen.train.run import Run
from tests.train.helpers import make_run, on_ranks, run_ranks, sgd


def test_only_what_was_done_while_the_user_waited_counts() -> None:
    spans = [
        Span("wire", "early", 0.0, 1.5, "comm"),
        Span("wire", "late", 1.75, 0.5, "comm"),
        Span("decode", "inside", 1.5, 0.25, "wire"),
        Span("wait", "end of backward", 1.0, 1.0, "main"),
        Span("encode", "table", 1.5, 0.125, "main"),
    ]
    found = exposed(spans, 1.0, 2.0, "main")
    assert found == {
        "compute_s": 0.0,
        "select_s": 0.0,
        "encode_s": 0.0,
        "wait_s": 0.0,
        "wire_s": 0.75,
        "decode_s": 0.25,
    }


def test_what_overlaps_counts_once() -> None:
    spans = [
        Span("wire", "sum", 1.0, 0.5, "wire"),
        Span("wire", "sum", 1.0, 0.5, "comm"),
        Span("wait", "frames", 1.25, 0.5, "comm"),
    ]
    found = exposed(spans, 1.0, 2.0, "main")
    assert (found["wire_s"], found["wait_s"]) == (0.5, 0.25)


class Stall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None


def test_the_slow_rank_shows_in_its_events(tmp_path: Path) -> None:
    """Case 35: 200 ms in one rank's backward. Both ranks' steps take them, one rank's own work has them."""

    def body(comm):
        run = make_run(Metered(comm), run_dir=tmp_path)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        _, optimizer, _ = run.prepare(model, sgd(model), plan="dense")
        for step in range(2):
            loss = model[1](Stall.apply(model[0](torch.ones(1, 2)), 0.2 * comm.rank)).sum()
            if step:
                run.log(loss=loss)  # before backward: of the step under way
            loss.backward()
            optimizer.step()
            if not step:
                run.log(loss=7.0)  # after the step: of the step that ended
        run.close()

    run_ranks(2, body)
    logs = [read_events(tmp_path / f"events-rank{rank}.jsonl").events for rank in range(2)]
    fast, slow = ([e for e in log if isinstance(e, StepEvent)] for log in logs)
    assert min(fast[1].step_s, slow[1].step_s) > 0.1  # who waits may have begun later
    assert slow[1].compute_s > 0.19
    assert fast[1].compute_s < slow[1].compute_s
    assert [e.loss is not None for e in fast] == [True, True]
    assert fast[0].loss == 7.0
    assert fast[0].tx_bytes > 0
    assert fast[0].rx_bytes == sum(fast[0].rx_bytes_by_peer.values()) == fast[1].rx_bytes
    first, last = logs[1][0], logs[1][-1]
    assert isinstance(first, RunEvent)
    assert isinstance(last, EndEvent)
    assert (first.rank, first.size, first.method, last.steps) == (1, 2, "omnizen", 2)
    assert logs[0][0].run_id == first.run_id


def test_the_package_loads_without_torch() -> None:
    code = "import omnizen, sys; assert not {'torch', 'numba'} & set(sys.modules); print(omnizen.__version__)"
    paths = str(Path(__file__).parents[2] / "src")
    said = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": paths}, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert isinstance(Run, type)


def one_step(run: Run) -> int:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.prepare(model, optimizer, plan="dense")
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return run.step


def test_a_disk_that_is_full_ends_the_record_and_not_the_training(tmp_path: Path) -> None:
    (tmp_path / "events-rank0.jsonl").symlink_to("/dev/full")
    with pytest.warns(NotWrittenWarning, match="No space left on device.*training goes on") as said:
        assert on_ranks(2, one_step, run_dir=tmp_path) == [2, 2]
    assert len(said) == 1
    assert isinstance(read_events(tmp_path / "events-rank1.jsonl").events[-1], EndEvent)


def test_a_rank_that_cannot_write_its_record_is_heard_by_all_before_training(tmp_path: Path) -> None:
    (tmp_path / "events-rank1.jsonl").mkdir()

    def body(comm) -> str:
        with pytest.raises(UserError) as found:
            one_step(make_run(comm, run_dir=tmp_path))
        return str(found.value)

    own = f"run_dir: {tmp_path} cannot be written to (Is a directory)"
    first, second = run_ranks(2, body)
    assert (second, first) == (own, f"rank 1 cannot go on, so no rank does: UserError: {own}")
