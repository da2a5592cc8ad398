"""Trains one stretch after the other, each in a run of its own from given weights."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from omnizen.errors import NotFinite, UserError
from omnizen.measure.texts import gather_texts
from omnizen.plan.tuner.actions import Point, Probe, Result, Train
from omnizen.protocols import Comm
from omnizen.train.run import Run
from omnizen.train.tuning.ending import Board, Ending
from omnizen.train.tuning.stretch import Schemes, Stretch, Way, merged
from omnizen.train.tuning.task import Task, Weights

Losses = Sequence[float]
HOPELESS = 1e6
"""A loss beyond this ends a stretch; so does one that is no number."""


class Trainer:
    """Carries out a tuner's probes and stretches of training; one for each rank.

    Momentum and all else that an optimizer keeps begins anew with each stretch; weights go on.

    Args:
        comm: all ranks, for what they tell each other between stretches.
        way: who works with whom at a number of groups.
        begin: begins a run of all ranks, for one stretch.
        schemes: what ``run.prepare`` gets as plan for synchronous training.
        reducer: scheme of sparse tables inside groups.
        asked_to_end: asked before each step; stretches end soon after any rank's says True.

    Example:
        >>> trainer = Trainer(task, comm, way, begin=oz.init, board=StoreBoard())  # doctest: +SKIP
        >>> carrier = Carrier(tuner, trainer.train, trainer.first())  # doctest: +SKIP
    """

    def __init__(
        self,
        task: Task,
        comm: Comm,
        way: Callable[[int], Way],
        *,
        begin: Callable[[], Run],
        board: Board,
        schemes: Schemes = "dense",
        reducer: str = "auto",
        asked_to_end: Callable[[], bool] = lambda: False,
    ) -> None:
        self.task, self.comm, self.way = task, comm, way
        self._begin, self._board, self._schemes, self._reducer = begin, board, schemes, reducer
        self._asked = asked_to_end
        self._stretches = 0
        self._zero_s = time.monotonic()

    def start_clock(self) -> None:
        """Let times of updates count from now on."""
        self._zero_s = time.monotonic()

    @property
    def clock_s(self) -> float:
        """Seconds since the clock was started, on this rank."""
        return time.monotonic() - self._zero_s

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, of what JSON can hold, on every rank (collective)."""
        return [json.loads(text) for text in gather_texts(self.comm, json.dumps(value))]

    def first(self) -> Weights:
        """Return the weights to begin with."""
        return _copied(self.task.make_model())

    def train(self, action: Probe | Train, start: Weights) -> tuple[Result, Weights]:
        """Train as an action says; the same result on all ranks (collective)."""
        stretch = self.stretch(self.way(action.point.groups), action.point, action.seconds, start)
        return stretch.result(), stretch.end

    def stretch(
        self,
        way: Way,
        point: Point,
        seconds: float,
        start: Weights,
        *,
        enough: Callable[[Losses], bool] = lambda _: False,
    ) -> Stretch:
        """Train for some seconds (collective); equal on all ranks.

        Args:
            enough: told this rank's own losses, whether it asks all to end.
        """
        taken: list[tuple[float, float]] = []
        end, took_s, error = start, 0.0, ""
        staleness: dict[int, int] = {}
        began_s = time.monotonic()
        try:
            end, staleness, took_s = self._run(way, point, seconds, start, taken, enough)
        except NotFinite:
            taken.append((self.clock_s, math.nan))
            took_s = time.monotonic() - began_s
        except UserError as failed:  # raised on all ranks
            error, took_s = str(failed), time.monotonic() - began_s
        said = self.gather(
            [taken, [[lag, count] for lag, count in staleness.items()], took_s, error, self._asked()]
        )
        updates = merged([[(at_s, loss) for at_s, loss in each[0]] for each in said], way)
        counts = {int(lag): int(count) for lag, count in said[0][1]}
        return Stretch(
            updates=tuple(updates),
            staleness=tuple(counts.get(lag, 0) for lag in range(max(counts, default=-1) + 1)),
            seconds=max(each[2] for each in said),
            end=end,
            error=next((each[3] for each in said if each[3]), ""),
            interrupted=any(each[4] for each in said),
        )

    def _run(
        self,
        way: Way,
        point: Point,
        seconds: float,
        start: Weights,
        taken: list[tuple[float, float]],
        enough: Callable[[Losses], bool],
    ) -> tuple[Weights, dict[int, int], float]:
        task, rank = self.task, self.comm.rank
        layout, share = way.layout, way.layout.samples[rank]
        model = task.make_model()
        model.load_state_dict(start)
        optimizer = task.make_optimizer(model, point)
        team = next(number for number, ranks in enumerate(layout.groups) if rank in ranks)
        ending = Ending(
            self._board,
            f"stretch/{self._stretches}",
            team,
            leads=rank == layout.groups[team][0],
            every=way.every[rank] if way.every else 1,
        )
        self._stretches += 1
        losses: list[float] = []
        with self._begin() as run:
            run.prepare(model, optimizer, plan=way.plan(self._schemes, self._reducer))
            run.set_hyper(lr=point.step, momentum=point.momentum)
            batches = task.batches(share)
            start_s = time.monotonic()
            while not ending.now(
                len(taken),
                time.monotonic() - start_s >= seconds
                or _hopeless(losses)
                or bool(losses and enough(losses))
                or self._asked(),
            ):
                run.set_batch_weight(share)
                loss = task.loss(model, next(batches))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss.detach()))
                taken.append((self.clock_s, losses[-1]))
            took_s = time.monotonic() - start_s
            staleness = run.staleness() if rank == 0 else {}
            run.flush()
            end = _copied(model)
        return end, staleness, took_s


def _hopeless(losses: Losses) -> bool:
    return bool(losses) and not abs(losses[-1]) < HOPELESS


def _copied(model: torch.nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
