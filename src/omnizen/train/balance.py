"""Batch sizes in proportion to what each rank gets done, followed while the run goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from omnizen.errors import Disagreement
from omnizen.plan.batch_control import BatchControl
from omnizen.train.own_time import OwnTime
from omnizen.train.shares import Place, Shares
from omnizen.train.sync import Engine, Round


class Balance:
    """Tells each rank's own time with the small message of a step, and changes batch sizes on all ranks alike.

    Args:
        control: decides; equal on all ranks.
        own: this rank's seconds.
        shares: of the loader that is dealt out; None where the user makes batches.
        adjusted: told of new sizes, and of the smoothed own seconds that led to them.
    """

    def __init__(
        self,
        control: BatchControl,
        engine: Engine,
        own: OwnTime,
        shares: Shares | None,
        adjusted: Callable[[tuple[int, ...], tuple[float, ...]], None],
    ) -> None:
        self.control = control
        self._engine, self._own, self._shares, self._adjusted = engine, own, shares, adjusted
        self._step = engine.step
        self._read = self._done = 0
        engine.tell = self.tell
        engine.observers.append(self.heard)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes by rank of the batches that are drawn next."""
        return self.control.sizes if self._shares is None else self._shares.latest

    def count(self, samples: int) -> None:
        """Note samples that were handed out."""
        self._read += samples

    def tell(self) -> tuple[float, ...]:
        """Return own seconds and samples of the step before, where there was one, and how far data was drawn."""
        seconds, samples = math.nan, 0
        if self._engine.step != self._step:
            self._step = self._engine.step
            seconds, samples, self._done = self._own.take(), self._done, 0
        return seconds, samples, *((0, 0) if self._shares is None else self._shares.drawn)

    def heard(self, done: Round) -> None:
        """Hear all ranks' times at the end of a synchronised backward; a change is decided on all ranks at once."""
        if done.agreed is None:  # alone, there is nothing to balance
            return
        self._own.end(done.backward_ended_s)
        self._done += self.control.sizes[self._engine.gradients.rank] if self._shares is None else self._read
        self._read = 0
        seconds, samples, passes, steps = zip(*done.agreed.wait().told, strict=True)
        sizes = self.control.tell(seconds, samples)
        if sizes is not None:
            if self._shares is not None:
                self._shares.change(sizes, _places(passes, steps))
            self._adjusted(sizes, self.control.seconds)
        self._own.begin()

    def state_dict(self) -> dict[str, Any]:
        """Return what decisions depend on, the same on all ranks."""
        return self.control.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Decide on from there; the step that the engine is at was restored before."""
        self._step = self._engine.step
        self.control.load_state_dict(state)


def _places(passes: Sequence[float], steps: Sequence[float]) -> list[Place]:
    for rank, number in enumerate(passes):
        if number != passes[0]:
            raise Disagreement(
                f"rank 0 is in pass {passes[0]:.0f} over the data and rank {rank} in pass {number:.0f}, so batches "
                "cannot be divided anew: iterate over the loader equally often on every rank, and look at samples "
                "by loader.dataset[0]"
            )
    return [(int(number), int(step)) for number, step in zip(passes, steps, strict=True)]
