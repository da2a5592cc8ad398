"""What ``run.prepare`` does: agree, equalise, lay out, hook."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from omnizen._version import __version__
from omnizen.errors import UserError
from omnizen.measure.around import lab_facts
from omnizen.measure.texts import gather_texts
from omnizen.protocols import Reducer
from omnizen.strategies.strategy import Strategy
from omnizen.train.auto import Watch, measure_machines
from omnizen.train.balance import Balance
from omnizen.train.balance_wish import Balancing, Wanted, check_balance, first_batches
from omnizen.train.checks import (
    check_choices,
    check_model,
    check_optimizers,
    compare_settings,
    describe_loader,
    describe_optimizers,
)
from omnizen.train.choice import choose_routing, watches
from omnizen.train.control import Turn
from omnizen.train.course import Course, set_course
from omnizen.train.detached import Detached
from omnizen.train.driver import EveryStep, driver_of
from omnizen.train.everyone import on_everyone
from omnizen.train.foreknown import foreknown
from omnizen.train.groups.driver import Groups
from omnizen.train.groups.loader import GroupLoader
from omnizen.train.groups.setup import check_groups, inside_groups
from omnizen.train.hyper import mixed_rates, set_hyper
from omnizen.train.loader import CountingLoader, ShardedLoader, can_share
from omnizen.train.local import LocalSteps
from omnizen.train.local_checks import check_local, settled
from omnizen.train.local_loader import LocalLoader
from omnizen.train.lookout import Lookout
from omnizen.train.own_time import OwnTime
from omnizen.train.pulls import Pulls, Reads, check_lazy, check_reads, may_be_lazy
from omnizen.train.record import StepRecord
from omnizen.train.router import Routing, build, make_reducer, trainable
from omnizen.train.shares import Shares
from omnizen.train.start import equalise
from omnizen.train.sync import Engine, Reduction
from omnizen.train.voice import asked_for_in_force, keep_plan, plan_in_force
from omnizen.train.weighted import check_weighted

if TYPE_CHECKING:
    from omnizen.measure.facts import Facts
    from omnizen.plan.plan import Plan
    from omnizen.train.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked of ``run.prepare``, which describes it."""

    plan: str | Path | Plan | Mapping[str, str]
    strategy: Strategy
    reduction: Reduction
    values: str
    dense_below: int
    scaler: torch.amp.GradScaler | None
    reads: Reads | None
    balance: Balancing
    facts: str | Path | Facts | None


def prepare(
    run: Run, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], loader: Any, wishes: Wishes
) -> Any:
    """Set a run up for a model (collective); returns the loader to use."""
    known = foreknown(run, model, optimizer, loader, wishes)
    if known.plan is not None:
        wishes, run.facts = replace(wishes, plan=known.plan), known.facts
    agreed = _agree(run, model, optimizer, loader, wishes)
    course, wanted = agreed.course, agreed.wanted
    shares, batches = first_batches(run, wanted, model, loader)
    machines = measure_machines(run.gradients) if watches(wishes.plan, run.size) else None
    scaler, reads = wishes.scaler, wishes.reads
    run._model, run._values = model, wishes.values
    local = course.strategy.share != "grad"
    inside, control = inside_groups(run, course.strategy)
    run._engine = engine = Engine(
        model,
        build(model, agreed.routing, _settled if local else make_reducer, comm=inside),
        inside,
        control,
        reduction=wishes.reduction,
        take_weight=run._take_weight,
        shared_seed=run.seed,
        local=local,
    )
    run.pulls = Pulls(model, engine, run.optimizers, reads)
    run.pulls.follow()
    if inside is run.gradients and not local:
        engine.learning_rates = partial(mixed_rates, run.optimizers)
    if scaler is not None:
        engine.loss_scale = scaler.get_scale
    _hook_optimizers(run, engine, course.strategy)
    set_hyper(run.optimizers, None, course.momentum)
    if loader is not None:
        run.loader = loader = _share(run, loader, shares, course.samples)
    if isinstance(run.driver, Groups):
        run.driver.serve()
    _begin_record(run, model)
    if machines is not None:
        lazy = may_be_lazy(model, run.optimizers, scaler) if reads is not None else frozenset()
        run._watch = Watch(model, engine, machines, lambda: run._batch_samples or 0, run.follow, lazy)
        if batches is None:  # else batch sizes, and with them step times, change on purpose
            run._lookout = Lookout(engine, run.follow, run._note, lazy)
    else:
        keep_plan(run)
        if run.plan is not None and run.rank == 0:
            plan_in_force(run.plan, engine.step, run.run_dir, [*course.remarks, *known.remarks])
        elif run.rank == 0 and run.size > 1:
            asked_for_in_force(course.strategy, agreed.routing.schemes, len(trainable(model)), run.size)
        if known.plan is not None and batches is None and isinstance(run.driver, EveryStep):
            run._lookout = Lookout(engine, run.follow, run._note, known.lazy)
            run._lookout.expect(known.plan, known.facts)
    if batches is not None:  # the last to observe: what the others do is no rank's own work
        run.balance = Balance(
            batches, engine, OwnTime(engine, next(model.parameters()).device), shares, run._adjusted
        )
    if wanted is not None:
        run._adjusted(run.batch_sizes, ())
    return loader


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks are going to do."""

    routing: Routing
    course: Course
    wanted: Wanted | None


def _agree(
    run: Run, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], loader: Any, wishes: Wishes
) -> Agreed:
    """Look at everything before anything changes; all ranks go on, or none does."""

    def choose() -> tuple[str, Agreed]:
        check_choices(wishes.reduction, wishes.values)
        check_model(model, run.size)
        run.optimizers = check_optimizers(optimizer, model)
        said, routing, run.plan = choose_routing(model, wishes.plan, run.size, wishes.values, wishes.dense_below)
        course = set_course(
            run.plan,
            wishes.strategy,
            balance=wishes.balance,
            loader=loader,
            optimizers=run.optimizers,
            size=run.size,
        )
        strategy = course.strategy
        if strategy.share != "grad":
            check_local(strategy, run.size, loader, wishes.reduction, wishes.reads, wishes.values)
        if strategy.weights:
            check_weighted(strategy, run.size, wishes.reduction)
        check_lazy(model, routing.schemes, run.optimizers, wishes.scaler)
        check_groups(strategy, run, routing.schemes.values(), wishes.scaler)
        check_reads(wishes.reads, loader)
        synchronous = strategy.share == "grad" and strategy.groups == 1
        wanted = check_balance(course.balance, loader, run.size, synchronous=synchronous)
        lines = {
            "plan": said,
            "strategy": strategy,
            "values": wishes.values,
            "reduction": wishes.reduction,
            "dense_below": wishes.dense_below,
            "scaler": "none" if wishes.scaler is None else "given",
            "seed": run.seed,
            "reads": "none" if wishes.reads is None else "given",
            "loader": describe_loader(loader),
            "releases": f"omnizen {__version__}, torch {torch.__version__.split('+')[0]}",
            "balance": course.balance,
            "optimizers": describe_optimizers(run.optimizers, model) if synchronous else "each rank's own",
        }
        return "\n".join(f"{name}: {value}" for name, value in lines.items()), Agreed(routing, course, wanted)

    said, agreed = on_everyone(partial(gather_texts, run.control), choose)
    run.started = equalise(model, run.control)
    compare_settings(gather_texts(run.control, said))
    return agreed


def _hook_optimizers(run: Run, engine: Engine, strategy: Strategy) -> None:
    """Put what happens around optimizer steps in order: the guard, detached weights, the strategy, the count."""
    for each in run.optimizers:
        each.register_step_pre_hook(lambda stepping, *_: engine.check_step(stepping))
    run._detached = Detached(engine, run.optimizers)
    run.driver = driver_of(strategy, run)
    if isinstance(run.driver, Groups):
        run._detached.refuse("compute groups")
    for each in run.optimizers:
        each.register_step_pre_hook(lambda stepping, *_: run.driver.before_step(stepping))
    run.optimizers[0].register_step_post_hook(lambda *_: run._stepped())


def _share(run: Run, loader: Any, shares: Shares | None, samples: tuple[int, ...]) -> Any:
    shared: CountingLoader | ShardedLoader | LocalLoader
    if can_share(loader):
        seed = run.seed if loader.generator is None else loader.generator.initial_seed()
        seed = int(gather_texts(run.control, str(seed))[0])
        if isinstance(run.driver, LocalSteps):
            return LocalLoader(loader, run, run.driver, seed)
        if isinstance(run.driver, Groups):
            drawn = GroupLoader(loader, run.driver, seed, run._count, samples)
            run.engine.odd.where = drawn.batch_in_hand
            return drawn
        dealt = shared = ShardedLoader(loader, run.rank, run.size, seed, run._count, shares)
        run.engine.odd.where = dealt.batch_in_hand
    else:
        shared = CountingLoader(loader, run._count, lambda: run.engine.announce(Turn.LOADER_ENDED))
    if run.pulls.ahead:
        shared.around = run.pulls.around
    return shared


def _begin_record(run: Run, model: nn.Module) -> None:
    if run.run_dir is None:
        return
    run_id = gather_texts(run.control, f"{time.time_ns():x}")[0]
    run._record = record = on_everyone(partial(gather_texts, run.control), partial(_open_record, run, run.run_dir))
    record.begin(run_id, model, run.device, "omnizen")
    assert run.started is not None
    if run.started.names:
        names = run.started.names
        record.note(
            0,
            f"{len(names)} tensors differed from rank 0 at the start (first: {names[0]}); this rank sent "
            f"{run.started.sent_bytes} bytes of them on",
        )
    run.engine.observers.append(record.round)
    run.pulls.waited = record.waited


def _open_record(run: Run, folder: Path) -> StepRecord:
    try:
        return StepRecord(folder, run.gradients, lab_facts(), threading.current_thread().name)
    except OSError as error:
        raise UserError(f"run_dir: {folder} cannot be written to ({error.strerror or error})") from error


def strategy_and_plan(
    plan: str | Path | Plan | Strategy | Mapping[str, str],
) -> tuple[Strategy, str | Path | Plan | Mapping[str, str]]:
    """Part what ``run.prepare(plan=...)`` was given: plain plans train synchronously."""
    if not isinstance(plan, Strategy):
        return Strategy(), plan
    if plan.reducer != "auto":
        return plan, plan.reducer
    if plan.share != "grad":
        return plan, "dense"
    return plan, "zen" if plan.groups != 1 else "auto"


def _settled(scheme: str, values: str) -> Reducer:
    """Return the reducer of a name for local steps."""
    return settled(make_reducer(scheme, values))


def check_first(run: Run) -> None:
    """Refuse a second model."""
    if run._engine is not None:
        raise UserError("a run prepares one model; put several into one nn.ModuleDict")
