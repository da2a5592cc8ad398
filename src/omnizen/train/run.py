"""The user's side: one object that prepares a model and keeps its ranks together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from omnizen.errors import UserError
from omnizen.protocols import Comm
from omnizen.strategies.strategy import Strategy
from omnizen.train.auto import Watch
from omnizen.train.balance import Balance
from omnizen.train.balance_wish import Balancing
from omnizen.train.checks import logged_number, not_negative
from omnizen.train.clip import clip_grad_norm_
from omnizen.train.control import Turn
from omnizen.train.detached import Detached
from omnizen.train.driver import Driver, EveryStep
from omnizen.train.groups.setup import regroup
from omnizen.train.hyper import set_hyper
from omnizen.train.loader import ShardedLoader
from omnizen.train.prepare import Wishes, check_first, prepare, strategy_and_plan
from omnizen.train.pulls import Pulls, Reads
from omnizen.train.record import StepRecord
from omnizen.train.router import DENSE_BELOW, build, from_plan
from omnizen.train.start import Started
from omnizen.train.sync import Engine, Reduction
from omnizen.train.voice import keep_plan, plan_in_force

if TYPE_CHECKING:
    from omnizen.measure.facts import Facts
    from omnizen.plan.plan import Plan
    from omnizen.sparse.masks import Masks
    from omnizen.train.lookout import Lookout

Optimizers = TypeVar("Optimizers", bound="Optimizer | Sequence[Optimizer]")


class Run:
    """One rank of a training run; made by ``omnizen.init``.

    Args:
        gradients: comm for gradients.
        control: comm for small messages, a group of its own.
        seed: equal on all ranks; orders of data and shared random choices follow from it.
        run_dir: where facts, plan and events are written; nothing is written when None.
        on_close: called last by ``close``.
    """

    def __init__(
        self,
        gradients: Comm,
        control: Comm,
        *,
        seed: int = 0,
        run_dir: str | os.PathLike[str] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.gradients, self.control, self.seed = gradients, control, seed
        self.rank, self.size, self.device = gradients.rank, gradients.size, gradients.device
        self.run_dir = Path(run_dir) if run_dir is not None else None
        self.plan: Plan | None = None
        self.facts: Facts | None = None
        self.started: Started | None = None
        self.loader: Any = None
        self.optimizers: list[Optimizer] = []
        self._engine: Engine | None = None
        self._record: StepRecord | None = None
        self._model: nn.Module | None = None
        self._samples, self._read = 0, False
        self._batch_samples: int | None = None
        self._watch: Watch | None = None
        self._lookout: Lookout | None = None
        self._values = "float32"
        self._weight_given: float | None = None
        self.weight_factor = 1.0
        """What this rank's gradients count for beside their samples."""
        self._on_close, self._closed = on_close, False
        self._detached: Detached | None = None
        self.driver: Driver = EveryStep()
        """What the strategy does around optimizer steps."""
        self.pulls: Pulls
        self.balance: Balance | None = None

    @property
    def engine(self) -> Engine:
        """The machinery of the prepared model."""
        if self._engine is None:
            raise UserError("call run.prepare(model, optimizer, loader) first")
        return self._engine

    @property
    def detached(self) -> Detached:
        """What moves weights under a detached scheme."""
        if self._detached is None:
            raise UserError("call run.prepare(model, optimizer, loader) first")
        return self._detached

    @property
    def model(self) -> nn.Module:
        """The prepared model."""
        if self._model is None:
            raise UserError("call run.prepare(model, optimizer, loader) first")
        return self._model

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.engine.step

    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        loader: Any = None,
        *,
        plan: str | Path | Plan | Strategy | Mapping[str, str] = "auto",
        reduction: Reduction = "mean",
        values: str = "float32",
        dense_below: int = DENSE_BELOW,
        scaler: torch.amp.GradScaler | None = None,
        reads: Reads | None = None,
        balance: Balancing = None,
        facts: str | Path | Facts | None = None,
    ) -> tuple[nn.Module, Optimizers, Any]:
        """Make a model train on all ranks as one process would on all their batches together.

        The model comes back as it is (same object, same ``state_dict`` keys), equal to rank 0's; after
        ``loss.backward()`` each ``.grad`` is the average over ranks, weighted by the samples behind it.

        Args:
            optimizer: one, or several that step together (the first one counts the steps).
            loader: a plain DataLoader is dealt out to the ranks, each sample once an epoch; ``batch_size`` stays
                that of one rank. Loaders with samplers of their own and other iterables stay as they are. With a
                loader that reads ahead of the training loop, use ``set_batch_weight``.
            plan: "auto" (measure, then plan), a plan or its file, the name of a scheme for all embeddings (one that
                loses something, such as "topk" or "powersgd", for all parameters, with error feedback), schemes by
                parameter as ``{"encoder.*": "topk(density=0.001)", "*": "dense"}`` of which the first pattern that
                matches counts, or a strategy, whose reducer counts.
            reduction: "sum" when the loss is a sum over samples rather than a mean.
            values: dtype of sparse values on the wire; sums are always float32. Gradients of float16 and bfloat16
                parameters are summed in float32 too.
            dense_below: parameters with fewer elements stay dense under a lossy scheme for dense gradients.
            scaler: the GradScaler of mixed precision, for what lossy schemes keep between steps: it is kept without
                the loss's scale, which changes. Exact schemes need none.
            reads: a function that names the rows that forward looks up in a batch, such as
                ``lambda batch: {"table.weight": batch[0]}``. With it "auto" may choose, and "lazy"
                is faster at, sending a rank only rows that its next batch reads; call ``run.flush()`` on all ranks
                before you read others.
            balance: "auto" gives each rank batches in proportion to what it gets done, and follows its speed;
                shares that sum to 1 stay as they are; a ``BatchLaw`` is "auto" with settings of your own. Global
                batches and their gradients stay those of even shares. See ``batch_sizes``.
            facts: with prices, of this job: "auto" then chooses among all strategies, at once. Unless given, those
                in ``run_dir`` are looked at.

        Raises:
            Disagreement: the ranks' models or plans differ; on all ranks, naming the first difference.
            UserError: an unusable plan or argument; says what is allowed.

        Example:
            >>> run = oz.init(); model, optimizer, loader = run.prepare(model, optimizer, loader)  # doctest: +SKIP
        """
        check_first(self)
        strategy, plan = strategy_and_plan(plan)
        wishes = Wishes(
            plan=plan,
            strategy=strategy,
            reduction=reduction,
            values=values,
            dense_below=dense_below,
            scaler=scaler,
            reads=reads,
            balance=balance,
            facts=facts,
        )
        loader = prepare(self, model, optimizer, loader, wishes)
        return model, optimizer, loader

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Each rank's samples in the global batches that are read next."""
        if self.balance is not None:
            return self.balance.sizes
        if not isinstance(self.loader, ShardedLoader):
            raise UserError("batch sizes are known of a DataLoader that run.prepare() deals out, or with balance=")
        return self.loader.shares.latest

    def no_sync(self) -> AbstractContextManager[None]:
        """Let the gradients of the backward passes inside pile up on this rank, for gradient accumulation."""
        return self.engine.paused()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the averaged gradients of the model by their common norm; returns the norm before."""
        limit = not_negative(max_norm, "max_norm", finite=False)
        return clip_grad_norm_(self.model.parameters(), limit, self.pulls.parts(), self._add_up)

    def flush(self) -> None:
        """Have every row's last value on every rank, before evaluation; called by all ranks between steps.

        ``plan="lazy"`` leaves rows at their owners, and other strategies leave ranks with weights of their own;
        checkpoints and the end of a run flush by themselves.
        """
        self.pulls.flush()
        self.driver.flush()

    def staleness(self) -> dict[int, int]:
        """Return how old contributions of compute groups were: how often each number of versions was counted.

        A contribution that was taken at the newest weights counts 0. Each server counts for its part of the model.
        Any rank may ask at any time; empty without compute groups.
        """
        return self.driver.staleness()

    def regroup(self, into: int | Sequence[Sequence[int]], *, samples: Sequence[int] = ()) -> None:
        """Train in other compute groups from here on, weights and momentum carried over; called by all ranks.

        Args:
            into: as ``strategies.groups`` takes it; 1 is everybody, through the servers as before.
            samples: of each rank in a step, of which the proportion counts; as many on all unless given.
        """
        regroup(self, into, samples)

    def set_hyper(self, *, lr: float | None = None, momentum: float | None = None) -> None:
        """Set the step size or momentum of all parameter groups from the next step on; called by all ranks.

        Momentum may be below 0, which asynchronous groups can want; for Adam and its like it is the first beta.
        """
        set_hyper(self.optimizers, lr, momentum)

    def _add_up(self, number: Tensor) -> Tensor:
        return self.engine.call(lambda: self.control.all_reduce(number.to(self.control.device)).wait())

    def averaged(self) -> AbstractContextManager[None]:
        """Let the weights of a detached scheme ("def-random-block") be what all ranks' sums make of them.

        For evaluation; called by all ranks. Without such a scheme nothing changes, as weights are equal anyway.
        """
        return self.detached.averaged()

    def set_batch_weight(self, weight: float) -> None:
        """Say how much the next synchronised gradient weighs, e.g. its number of tokens; before ``backward``."""
        self._weight_given = not_negative(weight, "the weight of a batch")

    def prune(self, density: float, scores: Mapping[str, Tensor] | None = None, *, scope: str = "global") -> Masks:
        """Keep the best weights, zero the others and their gradients from now on; called by all ranks.

        With ``plan="compact"`` only the gradients of kept weights travel. Masks are not part of a checkpoint: give
        them to ``use_masks`` after ``prepare``.

        Args:
            density: fraction of weights to keep, in (0, 1].
            scores: by parameter name, higher is better (``omnizen.sparse.pruning``); averaged over ranks.
                Magnitudes unless given.
            scope: "global", or "layer" for the same fraction of each parameter.
        """
        from omnizen.train import pruned

        return pruned.prune(self, density, scores, scope)

    def use_masks(self, masks: Masks) -> None:
        """Train under these masks, the same on all ranks (checked by digest); called by all ranks."""
        from omnizen.train import pruned

        pruned.use_masks(self, masks)

    def note_losses(self, losses: Tensor) -> None:
        """Note the losses of the batch in hand, one for each sample in its order (``reduction="none"``).

        Slow ranks read samples of high loss under ``strategies.local_sgd(pool=...)``; else this does nothing.
        """
        note = getattr(self.loader, "note_losses", None)
        if note is not None:
            note(losses)

    def log(self, **values: float | Tensor) -> None:
        """Record numbers by name (``loss=``, ``norm=``) of the step under way, or of the one that just ended."""
        numbers = {name: logged_number(name, value) for name, value in values.items()}
        if self._record is not None:
            self._record.log(numbers)

    def save(self, folder: str | Path, *, extra: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint between two steps, with ``extra={"scheduler": scheduler}``; called by all ranks."""
        from omnizen.train import checkpoint

        checkpoint.save(self, folder, extra)

    def load(self, folder: str | Path, *, extra: Mapping[str, Any] | None = None) -> None:
        """Go on from a checkpoint of as many ranks, bit for bit; called by all ranks after ``prepare``."""
        from omnizen.train import checkpoint

        checkpoint.load(self, folder, extra)

    def close(self) -> None:
        """End the run on this rank, after hearing that the others end too; calling it twice is harmless.

        Raises:
            UnevenInputs: another rank goes on with steps.
            PeerLost: another rank has ended without closing.
        """
        engine = self._engine
        self._end(announce=engine is not None and engine.wire.failed is None and not engine.broken_off)

    def _end(self, *, announce: bool) -> None:
        """Let go of everything; those who wait for this rank are told that it is gone."""
        if self._closed:
            return
        self._closed = True
        try:
            if announce and self._engine is not None:
                self._engine.announce(Turn.CLOSED)
                self.flush()
        finally:
            self.driver.close()
            if self._engine is not None:
                self._engine.close()
            if self._record is not None:
                self._record.close()
            self.gradients.close()
            self.control.close()
            if self._on_close is not None:
                self._on_close()

    def __enter__(self) -> Run:
        """Close the run at the end of a ``with``; after an error without waiting for the others to end too."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif issubclass(kind, Exception):  # an interrupt must not wait for what is under way
            self._end(announce=False)

    def follow(self, plan: Plan, facts: Facts | None = None, planning_s: float = 0.0) -> None:
        """Synchronise by this plan from the next step on; the same call, with the same plan, on all ranks."""
        if self._watch is not None:
            self._watch.stop()
        self.pulls.flush(state=True)
        self.engine.route(build(self.model, from_plan(plan, self._values), comm=self.gradients))
        self.pulls.follow()
        self.facts, self.plan = facts or self.facts, plan
        keep_plan(self)
        if self.rank == 0:
            plan_in_force(plan, self.engine.step, self.run_dir)
        if self._lookout is not None:
            self._lookout.expect(plan, self.facts)
        if planning_s:
            self._note(
                f"planning and trying near-ties took {planning_s:.1f} s; their bytes and time are in this step"
            )

    def _note(self, text: str) -> None:
        if self._record is not None:
            self._record.note(self.engine.step, text)

    def _count(self, samples: int) -> None:
        self._samples += samples
        self._read = True
        if self.balance is not None:
            self.balance.count(samples)
        if self._record is not None:
            self._record.samples(samples)

    def _take_weight(self) -> float:
        if self._read:  # else another backward pass over the batch of the one before
            self._batch_samples = self._samples
        weight = self._weight_given
        if weight is None and self.loader is not None:
            if self._batch_samples is None and self.size > 1:
                raise UserError(
                    "no batch was read from the loader that run.prepare() returned; iterate over that one: it "
                    "deals the samples out and counts them (or call run.set_batch_weight())"
                )
            weight = float(self._batch_samples or 0)
        elif weight is None and self.balance is not None:
            weight = float(self.batch_sizes[self.rank])
        self._samples, self._read, self._weight_given = 0, False, None
        return self.weight_factor * (1.0 if weight is None else weight)

    def _adjusted(self, sizes: tuple[int, ...], seconds: tuple[float, ...]) -> None:
        if self._record is not None:
            self._record.balance(self.engine.step, sizes, seconds)

    def _stepped(self) -> None:
        number = self.engine.step
        self.engine.stepped()
        self.driver.after_step()
        if self._record is not None:
            self._record.step(number)


__all__ = ["Run"]
