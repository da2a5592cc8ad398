"""From gradient hooks to averaged gradients: what happens between two lines of the user's loop.

A hook on each parameter counts gradients; a unit is handed to the wire thread as soon as all its gradients are
there and all units before it were handed over, so communication overlaps backward and its order is the same on
all ranks. When backward ends, a callback hands over the rest, waits, and leaves averages in ``.grad``.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer

from omnizen.errors import OmnizenError, PeerLost, UserError
from omnizen.protocols import Comm, Later, Pending
from omnizen.spans import span
from omnizen.train.buffers import Buffers
from omnizen.train.control import Agreement, Turn, Word, agree, say
from omnizen.train.guard import StepGuard, holds_any
from omnizen.train.odd import OddGradients, is_odd
from omnizen.train.router import trainable
from omnizen.train.units import Unit
from omnizen.train.wire import Wire
from omnizen.types import Parts, Step

Reduction = Literal["mean", "sum"]
END_OF_BACKWARD = "end of backward"
"""Span in which the user's thread waits, and works for, what is still under way."""
BROKE_OFF = (
    "a backward pass began before the one before it had ended: either that one stopped with an error (the ranks "
    "are out of step now, restart from a checkpoint), or it is nested; use torch.utils.checkpoint with "
    "use_reentrant=False"
)


@dataclass(slots=True)
class Round:
    """One synchronising backward pass.

    Args:
        graph: number of the autograd pass, to notice one that broke off.
        waiting: gradients that each unit still waits for.
        word: what this rank told the others.
        usual: the ranks' mean weight in the round before, where all know it.
        arrived_s: when each parameter's gradient was there, by ``id``.
    """

    graph: int
    waiting: list[int]
    word: Word
    usual: float | None
    arrived_s: dict[int, float] = field(default_factory=dict)
    submitted: int = 0
    loss_scale: float = 1.0
    began_s: float = field(default_factory=time.monotonic)
    backward_ended_s: float = 0.0
    ended_s: float = 0.0
    agreed: Pending[Agreement] | None = None


class Engine:
    """Keeps the gradients of one model equal on all ranks.

    Args:
        gradients: comm for gradients; only the wire thread uses it.
        control: comm for the small messages; used by one thread at a time.
        take_weight: returns the batch weight since the last call.
        shared_seed: equal on all ranks.
        local: gradients stay each rank's own; a strategy keeps the ranks together in another way.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        gradients: Comm,
        control: Comm,
        *,
        reduction: Reduction,
        take_weight: Callable[[], float],
        shared_seed: int,
        local: bool = False,
    ) -> None:
        self.gradients, self.control, self.reduction = gradients, control, reduction
        self.step, self.shared_seed = 0, shared_seed
        self.alone = gradients.size == 1 or local
        """Whether gradients stay as they are."""
        self.place: Callable[[], int] = lambda: self.step
        """How far this rank is, in what all ranks count alike."""
        self.counted = "steps"
        """What ``place`` counts."""
        self.wire = Wire(f"omnizen-wire-{gradients.rank}")
        self.buffers = Buffers(model)
        self.usual_weight: float | None = None
        """The ranks' mean weight in the last round."""
        self._rests: deque[Callable[[], None]] = deque()
        self.observers: list[Callable[[Round], None]] = []
        self.tell: Callable[[], tuple[float, ...]] = tuple
        """Asked at the start of each round for numbers that all ranks hear with its agreement."""
        self.learning_rates: Callable[[], float] = lambda: 0.0
        """One number that differs where learning rates do; all ranks must give the same."""
        self.waited_s = 0.0
        """How long the user's thread has waited outside of backward."""
        self.probe: Callable[[Unit], None] | None = None
        self.loss_scale: Callable[[], float] = lambda: 1.0
        self.odd = OddGradients()
        self._take_weight, self._model = take_weight, model
        self._params = trainable(model)
        self._frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self._round: Round | None = None
        self._paused = False
        self._lock = threading.RLock()
        self._summed: dict[int, weakref.ref[Tensor]] = {}
        self._kinds = {id(p): (p.dtype, p.device, p.shape) for _, p in self._params}
        self._guard = StepGuard(model)
        self.route(units)
        self._hooks = [p.register_post_accumulate_grad_hook(self._arrived) for _, p in self._params]
        if reduction == "sum" and not local:  # before anything is added to the sums
            self._hooks += [p.register_hook(self._refuse_second_sum) for _, p in self._params]

    def route(self, units: Sequence[Unit]) -> None:
        """Take these units from the next backward on; a unit of the same name and method keeps its memory."""
        before = {(unit.name, unit.scheme): unit.state for unit in getattr(self, "units", [])}
        self.units = list(units)
        for unit in self.units:
            unit.state = before.get((unit.name, unit.scheme), unit.state)
        self._unit_of = {id(p): i for i, unit in enumerate(self.units) for p in unit.params}

    def join(self, gradients: Comm, control: Comm, *, step: int) -> None:
        """Average with other ranks from the next backward on; all of them are at this step."""
        self.gradients, self.control, self.step = gradients, control, step
        self.alone, self.usual_weight = gradients.size == 1, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let gradients pile up locally."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def check_step(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer step with which the ranks would drift apart."""
        if self.broken_off:
            raise OmnizenError(
                "the last backward pass stopped with an error, so its gradients are this rank's own and the ranks "
                "are out of step; restart from a checkpoint"
            )
        if not self.alone:
            self._guard.check(optimizer)
        self.odd.check(optimizer, self.step)

    @property
    def broken_off(self) -> bool:
        """Whether a backward pass stopped with an error (asked between backward passes)."""
        return self._round is not None

    @property
    def piled_up(self) -> bool:
        """Whether gradients piled up under ``no_sync`` since the last other backward pass."""
        return self._guard.piled_up

    def check_between_steps(self) -> None:
        """Refuse to save while gradients of part of a step are there: a checkpoint does not hold them."""
        if self.piled_up and any(p.grad is not None and holds_any(p.grad) for _, p in self._params):
            raise UserError(
                "run.save() in the middle of gradient accumulation would lose the gradients that piled up under "
                "run.no_sync(); save after optimizer.step(), or zero them"
            )

    def stepped(self) -> None:
        """Count one optimizer step."""
        self.step += 1

    def announce(self, turn: Turn) -> None:
        """Tell the other ranks that this one has no more steps, and hear that they have none either.

        Raises:
            UnevenInputs: when another rank goes on.
            PeerLost: when another rank has ended.
        """
        if self.gradients.size > 1:
            self.wire.submit(partial(self._agree, Word(turn, self.place()))).wait()

    def call(self, work: Callable[[], Any]) -> Any:
        """Run something that communicates in its turn, and return its result."""
        began_s = time.monotonic()
        try:
            return self.wire.submit(work).wait()
        finally:
            self.waited_s += time.monotonic() - began_s

    def call_for_step(self, work: Callable[[], None], *, spoken: bool = False) -> None:
        """Run something that communicates and that only ranks do that take another step.

        Args:
            spoken: tell the others first, for work that asks all of them: one that has no more steps hears of it
                while it still waits. Else it is told when the work fails, and may have given up waiting by then.

        Raises:
            UnevenInputs: another rank has no more steps.
        """
        word = Word(Turn.STEP, self.step, lr=self.learning_rates())

        def told() -> None:
            self.control.step = word.step
            agreed = Later(partial(self._heard, word, say(word, self.control)))
            self._or_hear(agreed, work)
            agreed.wait()

        unasked = partial(self._or_hear, Later(partial(self._agree, word)), work)
        self.call(told if spoken else unasked)

    def close(self) -> None:
        """Take the hooks off and end the thread."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.wire.close()

    def _arrived(self, param: Tensor) -> None:
        if self._paused:
            self._guard.piled_up = True
            return
        if self.wire.failed is not None:
            raise self.wire.failed
        with self._lock:
            now = self._open(param) if self._round is None else self._round
            if now.graph != torch._C._current_graph_task_id():
                raise OmnizenError(BROKE_OFF)
            now.arrived_s[id(param)] = time.monotonic()
            if not self.alone:
                now.waiting[self._unit_of[id(param)]] -= 1
            while now.submitted < len(now.waiting) and now.waiting[now.submitted] <= 0:
                self._submit(now)

    def _open(self, first: Tensor) -> Round:
        for name, param in self._frozen:
            if param.requires_grad:
                raise UserError(
                    f"{name} was frozen when run.prepare() was called and is trained now; unfreeze parameters "
                    "before run.prepare(), or freeze them again"
                )
        for name, param in self._params:
            if (param.dtype, param.device, param.shape) != self._kinds[id(param)]:
                dtype, device, shape = self._kinds[id(param)]
                raise UserError(
                    f"{name} was {dtype} {list(shape)} on {device} when run.prepare() was called and is now "
                    f"{param.dtype} {list(param.shape)} on {param.device}; convert or move the model before "
                    "run.prepare()"
                )
        weight, loss_scale = self._take_weight(), self.loss_scale()
        odd = bool(weight) and loss_scale == 1.0 and is_odd(first.grad)
        lr = self.learning_rates()
        word = Word(Turn.STEP, self.step, weight, self.buffers.changed(), self.tell(), lr, odd)
        waiting = [] if self.alone else [len(unit.params) for unit in self.units]
        self._round = Round(
            torch._C._current_graph_task_id(), waiting, word, self.usual_weight, loss_scale=loss_scale
        )
        if not self.alone:
            self.control.step = word.step
            said = say(word, self.control)  # on its way before any gradient is ready
            self._round.agreed = Later(partial(self._heard, word, said))
        Variable._execution_engine.queue_callback(self._backward_ended)
        return self._round

    def _refuse_second_sum(self, _: Tensor) -> None:
        """Look, once before anything is added, whether the sums of the last exchange are still there."""
        summed, self._summed = self._summed, {}
        for name, param in self._params if summed else []:
            kept = summed.get(id(param))
            if param.grad is not None and kept is not None and kept() is param.grad and holds_any(param.grad):
                raise UserError(
                    f"reduction='sum': {name}.grad was already summed over ranks and would be summed again; put "
                    "all but the last backward of a step under run.no_sync(), and zero all gradients after it"
                )

    def _submit(self, now: Round) -> None:
        unit, agreed = self.units[now.submitted], now.agreed
        step = Step(self.step, self.shared_seed, loss_scale=now.loss_scale)
        now.submitted += 1

        @torch.no_grad()
        def begin() -> None:
            assert agreed is not None
            self.gradients.step = now.word.step
            if self.probe is not None:
                self.probe(unit)
            rest = unit.reduce(self.gradients, self._before(now, agreed, unit), step)
            self._rests.append(lambda: rest(self._after(now, agreed, unit)))

        begun = self.wire.submit(partial(self._or_hear, agreed, begin))
        if unit.patient and self.probe is None and now.word.weight and self._early(now, unit):
            self.wire.help(begun)  # waits for nobody, and saves waking a thread
        self.wire.submit(partial(self._or_hear, agreed, partial(self._finish, int(unit.patient))))

    @torch.no_grad()
    def _finish(self, left: int) -> None:
        """Complete all units but the last ``left``: those that may wait until the next one has begun."""
        while len(self._rests) > left:
            self._rests.popleft()()

    @staticmethod
    def _or_hear(agreed: Pending[Agreement] | None, work: Callable[[], None]) -> None:
        try:
            work()
        except PeerLost:
            assert agreed is not None
            agreed.wait()  # a rank that had no more steps said so before it left
            raise

    def _early(self, now: Round, unit: Unit) -> bool:
        """Whether a unit's gradients leave before the ranks' weights are known; the same on all ranks."""
        return now.usual is not None and self.reduction == "mean" and unit.exact

    def _before(self, now: Round, agreed: Pending[Agreement], unit: Unit) -> float:
        """Return what this rank's gradients are multiplied by before they are averaged.

        Waiting for the others' weights would delay every step by a message. Gradients weigh as if the mean weight
        were that of the round before instead, and the average is corrected when the weights are known.
        """
        if self.reduction == "sum" and now.word.weight:
            return float(self.gradients.size)
        if not self._early(now, unit):
            return agreed.wait().factor
        assert now.usual is not None
        if now.word.weight:
            return now.word.weight / now.usual
        return 0.0 if agreed.wait().mean_weight else 1.0

    def _after(self, now: Round, agreed: Pending[Agreement], unit: Unit) -> float:
        """Return what the average is multiplied by: exactly 1 while the ranks' mean weight stays the same."""
        mean = agreed.wait().mean_weight
        return now.usual / mean if self._early(now, unit) and now.usual and mean else 1.0

    def _agree(self, word: Word) -> Agreement:
        self.control.step = word.step
        return self._heard(word, say(word, self.control))

    def _heard(self, word: Word, said: Pending[list[Parts]]) -> Agreement:
        return agree(word, said, self.control.rank, summed=self.reduction == "sum", counted=self.counted)

    def _backward_ended(self) -> None:
        now = self._round
        assert now is not None
        now.backward_ended_s = now.ended_s = time.monotonic()
        if now.agreed is not None:
            self._complete(now, now.agreed)
            now.ended_s = time.monotonic()
            self.odd.heard(now.agreed.wait().odd)
        elif self.gradients.size == 1:
            self.odd.heard((0,) if now.word.odd else ())
        self._round = None
        self._guard.synchronised()
        for observer in list(self.observers):
            observer(now)

    def _complete(self, now: Round, agreed: Pending[Agreement]) -> None:
        with self._lock:
            while now.submitted < len(now.waiting):
                self._submit(now)
        last = self.wire.submit(lambda: self._end(agreed.wait()))
        with span("wait", END_OF_BACKWARD):
            last.wait()
        with torch.no_grad():
            for unit in self.units:
                unit.finish()
            self.buffers.finish()
        if self.reduction == "sum":
            self._summed = {id(p): weakref.ref(p.grad) for _, p in self._params if p.grad is not None}

    @torch.no_grad()
    def _end(self, agreed: Agreement) -> None:
        self._finish(0)
        self.usual_weight = agreed.mean_weight or None
        if agreed.buffers:
            self.buffers.reduce(self.gradients, agreed.share)
