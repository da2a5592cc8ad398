"""Local steps: ranks train on their own for a round, then average parameters or what the round changed."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from omnizen.errors import NotFinite, UserError
from omnizen.reducers.local_momentum import find
from omnizen.train.control import Told, Turn, Word, agree, say
from omnizen.train.driver import InStep
from omnizen.train.local_counts import StepCounts
from omnizen.train.router import trainable
from omnizen.train.sync import Round
from omnizen.train.units import DenseBucket, Rest
from omnizen.types import Contribution, Dense, Step

if TYPE_CHECKING:
    from omnizen.strategies.strategy import Strategy
    from omnizen.train.run import Run

MOMENTA = ("momentum_buffer", "exp_avg")
"""What optimizers call the momentum that is masked."""


class LocalSteps(InStep):
    """Drives ``strategies.local_sgd``: counts local steps and averages at the end of each round.

    A loader that deals samples says when a round ends; without one it ends after this rank's number of steps of the
    first optimizer (and one each of the others, where there are several). A small message before each exchange
    tells where each rank is, so ranks that ended in different rounds hear of it instead of waiting.

    Reference: Lim et al., "Biased Local SGD for Efficient Deep Learning on Heterogeneous Systems",
    arXiv:2508.08540; Sattler et al., "Sparse Binary Compression", IJCNN 2019.
    """

    def __init__(self, strategy: Strategy, run: Run) -> None:
        self.strategy, self._run, self._engine = strategy, run, run.engine
        self.counts = StepCounts(strategy.every, run.size, most=strategy.most)
        self.rounds = self._exchanges = self._steps = 0
        self._samples = 0.0
        self.dealt = False
        """Whether a loader says when a round ends."""
        self.clock = time.monotonic
        self._since: float | None = None
        self._busy_s = 0.0
        self._waiting: set[int] | None = None
        self._named = trainable(run.model)
        self._start = self._copies()
        self._engine.place, self._engine.counted = (lambda: self.rounds), "rounds"
        self._engine.observers.append(self._passed)
        for i, optimizer in enumerate(run.optimizers[1:]):
            optimizer.register_step_post_hook(lambda *_, which=i: self._other_stepped(which))
        for unit in self._engine.units:
            found = find(unit.reducer) if isinstance(unit, DenseBucket) else None
            if isinstance(unit, DenseBucket) and found is not None and found.masked:
                unit.on_sent = partial(self._mask, unit)

    def before_step(self, optimizer: Optimizer) -> None:
        """Let the optimizer step with this rank's own gradients."""

    def after_step(self) -> None:
        """Count a local step, and end the round after the last one where no loader does."""
        self._steps += 1
        if self.dealt:
            return
        others = len(self._run.optimizers) - 1
        if self._waiting is not None or (self._steps >= self.counts.now[self._run.rank] and not others):
            self.end_round()
        elif self._steps >= self.counts.now[self._run.rank]:
            self._waiting = set(range(others))

    def flush(self) -> None:
        """Average what there is, in the middle of a round too."""
        if self._waiting is not None:
            self.end_round()
        else:
            self.meet(Turn.FLUSH)

    def close(self) -> None:
        """Have nothing to let go of."""

    def begin(self) -> None:
        """Start the clock of this rank's own work, where it does not run yet."""
        if self._since is None:
            self._since = self.clock()

    def end_round(self) -> bool:
        """Average at the end of a round; returns whether ranks take other numbers of steps from now on."""
        if self._engine.piled_up:
            raise UserError(
                f"round {self.rounds} of local steps ended while gradients piled up under run.no_sync(); say how "
                "many batches a step has, as in local_sgd(accumulate=4)"
            )
        self._waiting = None
        seconds = self.meet(Turn.ROUND)
        self.rounds += 1
        return self.counts.tell(seconds)

    def meet(self, turn: Turn) -> list[float]:
        """Average if any rank stepped since the last time; returns each rank's seconds for a step of the round."""
        now = self.clock()
        if self._since is not None:
            self._busy_s += now - self._since
        began = time.monotonic()
        rows = self._engine.call(partial(self._exchange, turn))
        self._engine.buffers.finish()
        self._run.pulls.waited(began, time.monotonic())
        self._steps, self._samples, self._busy_s = 0, 0.0, 0.0
        self._since = None if self.dealt else self.clock()
        return [busy / steps if steps else 0.0 for steps, busy, _ in rows]

    def state_dict(self) -> dict[str, Any]:
        """Return where this rank is, and its optimizers, which are its own."""
        return {
            "rounds": self.rounds,
            "exchanges": self._exchanges,
            "step": self._engine.step,
            "counts": self.counts.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._run.optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._engine.step = state.get("step", self._engine.step)
        self.rounds, self._exchanges = state.get("rounds", 0), state.get("exchanges", 0)
        if "counts" in state:  # not where another strategy wrote it, whose optimizers were restored already
            self.counts.load_state_dict(state["counts"])
            for optimizer, kept in zip(self._run.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(kept)
        self._steps, self._samples, self._waiting = 0, 0.0, None
        self._since, self._busy_s = None, 0.0
        self._start = self._copies()

    def _copies(self) -> dict[int, Tensor]:
        """Return the common starting point of a round, where differences from it travel."""
        if self.strategy.share != "delta":
            return {}
        return {id(p): p.detach().clone() for _, p in self._named}

    def _passed(self, done: Round) -> None:
        self._samples += done.word.weight

    def _other_stepped(self, which: int) -> None:
        if self._waiting is not None:
            self._waiting.discard(which)
            if not self._waiting:
                self.end_round()

    @torch.no_grad()
    def _exchange(self, turn: Turn) -> Told:
        """Say where this rank is, hear the others, and average (in the wire thread)."""
        control, buffers = self._run.control, self._engine.buffers
        weight = {"ranks": 1.0, "steps": self._steps, "samples": self._samples}[self.strategy.mean]
        told = (self._steps, self._busy_s, self._odd())
        word = Word(turn, self.rounds, float(weight), buffers.changed(), told)
        control.step = self._run.gradients.step = self.rounds
        agreed = agree(word, say(word, control), control.rank, counted="rounds")
        self._refuse_odd(agreed.told)
        if any(steps for steps, *_ in agreed.told) and self._run.size > 1:
            self._average(agreed.share)
        if agreed.buffers and self._run.size > 1:
            buffers.reduce(self._run.gradients, agreed.share)
        return agreed.told

    def _average(self, share: float) -> None:
        """Give the units parameters or differences in place of gradients, which come back afterwards.

        Args:
            share: this rank's weight over the mean weight.
        """
        units = self._engine.units
        params = [p for _, p in self._named]
        grads = [p.grad for p in params]
        for p in params:  # a parameter in place of its own gradient is overwritten by the average
            p.grad = p.detach() - self._start[id(p)] if self._start else p.detach()
        step = Step(self._exchanges, self._engine.shared_seed)
        self._exchanges += 1
        rests: deque[Rest] = deque()
        for unit in units:
            rests.append(unit.reduce(self._run.gradients, share, step))
            while len(rests) > int(unit.patient):
                rests.popleft()(1.0)
        while rests:
            rests.popleft()(1.0)
        for unit in units:
            unit.finish()
        for p, grad in zip(params, grads, strict=True):
            if self._start and p.grad is not None:
                start = self._start[id(p)]
                p.copy_(start.add_(p.grad.to_dense() if p.grad.is_sparse else p.grad))
            p.grad = grad

    def _mask(self, unit: DenseBucket, sent: Contribution) -> None:
        """Let the optimizers' momentum start anew where something was sent."""
        if isinstance(sent, Dense):
            was_sent = sent.values.view(-1) != 0
        else:
            was_sent = torch.zeros(unit.layout.numel, dtype=torch.bool, device=unit.flat.device)
            was_sent[sent.indices[sent.values.view(-1) != 0]] = True
        for slot, param in zip(unit.layout.slots, unit.params, strict=True):
            for optimizer in self._run.optimizers:
                state = optimizer.state.get(param, {})
                for kept in (state.get(name) for name in MOMENTA):
                    if isinstance(kept, Tensor) and kept.shape == slot.shape:
                        kept.masked_fill_(unit.layout.view(was_sent, slot).to(kept.device), 0.0)

    def _odd(self) -> int:
        """Return which of the trained parameters holds NaN or infinity, -1 when none does."""
        fine = torch.stack([torch.isfinite(p.detach()).all().cpu() for _, p in self._named])
        return -1 if bool(fine.all()) else int((~fine).nonzero()[0])

    def _refuse_odd(self, told: Told) -> None:
        for rank, (*_, odd) in enumerate(told):
            if odd >= 0:
                raise NotFinite(
                    f"{self._named[int(odd)][0]} of rank {rank} holds NaN or infinity after its local steps of "
                    f"round {self.rounds}; nothing was averaged, so the other ranks' weights are whole. Go on from "
                    "the last checkpoint with smaller steps"
                )
