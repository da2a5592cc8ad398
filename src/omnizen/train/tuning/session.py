"""Tuning from end to end: facts, search, prices, plan; each is written down, and a later call goes on there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from omnizen.errors import UserError
from omnizen.measure.facts import Facts
from omnizen.measure.job import measure_job
from omnizen.measure.model import model_digest
from omnizen.measure.subject import Subject
from omnizen.measure.texts import gather_texts
from omnizen.plan.clusters import samples_of
from omnizen.plan.efficiency import of_layout
from omnizen.plan.executions import speeds
from omnizen.plan.layouts import by_speed, even, sizes
from omnizen.plan.plan import Plan
from omnizen.plan.strategies import plan_strategy
from omnizen.plan.tuner import Carrier, Done, Point, Probe, Result, Settings, Train, Tuner
from omnizen.train.run import Run
from omnizen.train.tuning import pricing
from omnizen.train.tuning.diary import Diary
from omnizen.train.tuning.ending import Board
from omnizen.train.tuning.outcome import Interrupted, Outcome
from omnizen.train.tuning.settings import SEARCH_SHARE, TuningSettings, compare_searches
from omnizen.train.tuning.shelf import Shelf, write_json
from omnizen.train.tuning.stretch import Stretch, Way, thinned
from omnizen.train.tuning.subject_task import SubjectTask
from omnizen.train.tuning.task import Weights
from omnizen.train.tuning.trainer import Trainer

UNLIKE = 1.05
"""Ranks whose speeds differ by this factor get unequal shares."""


class Session:
    """One call of ``omnizen tune`` on one rank (every method is collective).

    Args:
        run: of all ranks, not prepared; for measuring and telling.
        folder: where everything is kept; only rank 0 reads and writes there, but for its rank's events.
        begin: begins a run for one stretch.
        asked_to_end: whether somebody has asked for the end.
        say: told each decision in words, on rank 0.
    """

    def __init__(
        self,
        run: Run,
        subject: Subject,
        folder: Path,
        settings: TuningSettings,
        *,
        begin: Callable[[], Run],
        board: Board,
        asked_to_end: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.run, self.subject, self.folder, self.settings = run, subject, folder, settings
        self.say: Callable[[str], None] = say if run.rank == 0 else lambda _: None
        self.task = SubjectTask(subject, run.rank, run.size, settings.seed)
        if self.task.batch != max(subject.batches):
            raise UserError(
                f"the loader's batches have {self.task.batch} samples, and the largest that is measured "
                f"{max(subject.batches)}: make them equal"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.shelf = Shelf(folder, writes=run.rank == 0)
        self.diary = Diary(folder, run, type(subject.model).__name__, subject.model, self.say)
        self._begin, self._board, self._asked = begin, board, asked_to_end
        self.facts: Facts
        self.plan: Plan | None = None
        self.trainer: Trainer
        self.tuner: Tuner

    def go(self) -> Outcome:
        """Do what is left to do.

        Raises:
            UserError: the folder holds another job's search, or nothing that was tried could be trained with.
        """
        interrupted = False
        with self.diary:
            try:
                self._measure()
                self._search()
            except Interrupted:
                interrupted = True
                self.say("interrupted; the same command goes on from here")
        return Outcome(self.facts, self.plan, self._chosen(), interrupted, self._tuned_s(), self._share())

    def _shared(self, name: str) -> str:
        """Return the text of rank 0's file on all ranks, empty where there is none."""
        path = self.folder / name
        text = path.read_text(encoding="utf-8") if self.run.rank == 0 and path.exists() else ""
        return gather_texts(self.run.control, text)[0]

    def _measure(self) -> None:
        text, searched = self._shared("facts.toml"), bool(self._shared("tuner.json"))
        if text:
            facts = Facts.from_toml(text, source=str(self.folder / "facts.toml"))
            differs = self._differs(facts)
            if not differs:
                count = f"{len(facts.prices)} price{'s' * (len(facts.prices) != 1)}"
                self.say(
                    f"facts of {facts.created or 'an earlier run'} reused: same model, workers and torch; {count}"
                )
                self._use(facts)
                return
            if searched:
                raise UserError(f"{self.folder} holds a search for {differs}; give another folder")
            self.say(f"facts are measured anew: those in {self.folder} are of {differs}")
        elif searched:
            raise UserError(f"{self.folder} holds a search whose facts.toml is gone; give another folder")
        self.say(f"measuring devices, links and the model for about {self.settings.measure_s:g} s")
        facts = measure_job(self.run.gradients, self.subject, budget_s=self.settings.measure_s)
        self._keep_facts(facts)
        self._use(facts)

    def _differs(self, facts: Facts) -> str:
        digest = model_digest(self.subject.model)
        if facts.world_size != self.run.size:
            return f"{facts.world_size} workers, not {self.run.size}"
        if facts.model_digest != digest:
            return f"another model (digest {facts.model_digest or 'unknown'}, not {digest})"
        if facts.torch_version != str(torch.__version__):
            return f"torch {facts.torch_version}, not {torch.__version__}"
        if facts.step is None or samples_of(facts) != self.task.batch:
            return f"batches of {samples_of(facts)}, not {self.task.batch}"
        return ""

    def _keep_facts(self, facts: Facts) -> None:
        self.facts = facts
        if self.run.rank == 0:
            facts.save(self.folder / "facts.toml")

    def _use(self, facts: Facts) -> None:
        self.facts = facts
        tensors = plan_strategy(facts, simulate=False).tensors
        self.trainer = Trainer(
            self.task,
            self.run.control,
            self.way,
            begin=self._begin,
            board=self._board,
            schemes={t.name: t.scheme for t in tensors} | {"*": "dense"},
            asked_to_end=self._asked,
        )

    def way(self, groups: int) -> Way:
        """Return who works with whom: shares by speed where ranks are unlike and the loader can be dealt out."""
        size, batch = self.run.size, self.task.batch
        speed = speeds(self.facts, batch)
        uneven = self.task.divisible and max(speed) > UNLIKE * min(speed)
        each = batch * size // groups
        return Way(by_speed(speed, groups, each) if uneven else even(size, groups, each))

    def _search(self) -> None:
        self.tuner, carrier = self._tuner()
        while True:
            self.diary.tell(self.tuner)
            action = self.tuner.next()
            if isinstance(action, Done):
                if self._chosen() is None:
                    raise UserError(f"nothing to train with was found: {action.reason}; see {self.folder}")
                self._price()
                self.say(f"done: {action.reason}")
                return
            if isinstance(action, Train):
                self._price()
                if not self.settings.train:
                    return
            if any(self.trainer.gather(self._asked())):
                raise Interrupted
            carrier.step()
            if isinstance(action, Train) and carrier.checkpoint != "first":
                self.shelf.publish(carrier.checkpoint)
            self.shelf.keep(carrier.states)
            self._keep_places()

    def _tuner(self) -> tuple[Tuner, Carrier[str]]:
        """Return the tuner as it was left, or a new one, and who carries its actions out."""
        settings, text = self._tuner_settings(), self._shared("tuner.json")
        checkpoint, ends = "first", {}
        if text:
            tuner = Tuner.from_json(text)
            compare_searches(tuner.settings, settings, self.folder)
            states: dict[int, str] = {}
            for number, (action, result) in enumerate(tuner.told):
                if isinstance(action, Probe):
                    states[action.number] = str(number)
                elif result.score(settings.last) < float("inf"):
                    checkpoint = str(number)
            ends = {number: states[number] for number in tuner.kept}
            places = json.loads(self._shared("places.json") or "[]")
            if len(places) == self.run.size:
                self.task.place = places[self.run.rank]
            self.say(f"going on after {len(tuner.told)} probes and stretches")
        else:
            tuner = Tuner(settings)
            self.shelf.put("first", self.trainer.first())
        save = self.folder / "tuner.json" if self.run.rank == 0 else None
        return tuner, Carrier(tuner, self._carry, checkpoint, ends=ends, save=save)

    def _tuner_settings(self) -> Settings:
        s, groups = self.settings, sizes(self.run.size)
        return Settings(
            workers=self.run.size,
            search=s.search,  # type: ignore[arg-type]  # checked already
            groups=groups,
            update_s=tuple(of_layout(self.facts, self.way(g).layout).update_s for g in groups),
            steps=tuple(self.task.step * factor for factor in (10.0, 1.0, 0.1)),
            probe_s=s.probe_seconds,
            overhead=s.overhead * (SEARCH_SHARE if self.run.size > 1 else 1.0),
            horizon_s=s.horizon_s,
        )

    def _carry(self, action: Probe | Train, start: str) -> tuple[Result, str]:
        name = str(len(self.tuner.told))
        weights = self._weights(start)
        if isinstance(action, Probe):
            probe = self._stretch(self.way(action.point.groups), action.point, action.seconds, weights)
            result, weights = probe.result(), probe.end
        else:
            result, weights = self._train(action, weights)
        self.shelf.put(name, weights)
        return replace(result, losses=thinned(result.losses)), name

    def _train(self, action: Train, weights: Weights) -> tuple[Result, Weights]:
        """Train in pieces, so that little is lost when the process is killed."""
        number, done = len(self.tuner.told), Result(0.0, 0)
        saved = json.loads(self._shared("piece.json") or "{}")
        if saved.get("number") == number:
            done = Result(saved["seconds"], saved["updates"], tuple(saved["losses"]))
            weights = self._weights("piece")
            self.say(f"training goes on after {done.seconds:.0f} of {action.seconds:.0f} s")
        else:
            self.say(f"training with {action.point} for {action.seconds:.0f} s")
        while done.seconds < action.seconds:
            seconds = min(self.settings.save_every_s, action.seconds - done.seconds)
            piece = self.trainer.stretch(self.way(action.point.groups), action.point, seconds, weights)
            more = piece.result()
            done = Result(
                done.seconds + more.seconds,
                done.updates + more.updates,
                thinned((*done.losses, *more.losses)),
                more.staleness,
                more.error,
            )
            if piece.error or piece.diverged:
                break
            known = self.tuner.settings
            if done.blew_up(known.last, known.blown_up):
                done = replace(done, losses=(*done.losses, math.inf))  # as bad as no number: not gone on from
                break
            weights = piece.end
            self.shelf.put("piece", weights)
            if self.run.rank == 0:
                table = {"number": number, "seconds": done.seconds, "updates": done.updates, "losses": done.losses}
                write_json(self.folder / "piece.json", table)
            if piece.interrupted:
                raise Interrupted
        return done, weights

    def _stretch(self, way: Way, point: Point, seconds: float, weights: Weights) -> Stretch:
        stretch = self.trainer.stretch(way, point, seconds, weights)
        if stretch.interrupted:
            raise Interrupted
        return stretch

    def _weights(self, name: str) -> Weights:
        """Return weights, on all ranks: those that lack them get rank 0's when a run begins."""
        return self.shelf.get(name) or self.trainer.first()

    def _keep_places(self) -> None:
        places = self.trainer.gather(self.task.place)
        if self.run.rank == 0:
            write_json(self.folder / "places.json", places)

    def _price(self) -> None:
        """Measure prices from the end of the winning probe, once, and plan."""
        text = self._shared("prices.json")
        ledger = pricing.Ledger.from_table(json.loads(text)) if text else pricing.Ledger()
        if not ledger.done:
            start = self.tuner.next()
            wanted = pricing.candidates(plan_strategy(self.facts), self.tuner, divisible=self.task.divisible)
            self._probe_prices(wanted, ledger, start.start if isinstance(start, Train) else None)
            made = pricing.prices(wanted, ledger)
            ledger.done = True
            if made:
                known = {p.of for p in made}
                kept = [p for p in self.facts.prices if p.of not in known]
                self._keep_facts(self.facts.model_copy(update={"prices": [*kept, *made]}))
            self._keep_ledger(ledger)
        self.diary.tell_prices(ledger)
        self.plan = self._planned()
        if self.run.rank == 0:
            self.plan.save(self.folder / "plan.toml")
        self.diary.planned()

    def _probe_prices(self, wanted: Sequence[pricing.Candidate], ledger: pricing.Ledger, start: int | None) -> None:
        if not wanted:
            return
        plain = pricing.setting_of(self.tuner, 1)
        seconds = self.settings.allowed_s - self._probed_s() - ledger.seconds
        seen = [t.result.update_s for t in self.tuner.trials if t.point.groups == 1 and not t.reason]
        step_s = median(seen) if seen else of_layout(self.facts, self.way(1).layout).update_s
        fit = pricing.lengths(seconds, self.settings.probe_seconds, pricing.LEAST_UPDATES * step_s, len(wanted))
        if fit is None:
            needs_s = 2 * pricing.LEAST_UPDATES * step_s
            left = f"{max(seconds, 0.0):.3g} s are left of the {self.settings.allowed_s:.3g} s that tuning may take"
            ledger.notes.append(
                ("stopped", f"no price is probed: that takes {needs_s:.3g} s, and {left}", None, [])
            )
            return
        rounds, count, each_s = fit
        name = next(
            (str(n) for n, (a, _) in enumerate(self.tuner.told) if isinstance(a, Probe) and a.number == start),
            "first",
        )
        weights = self._weights(name)
        self.say(f"prices: {count} strategies beside synchronous training, {rounds} times for {each_s:.3g} s each")
        while ledger.rounds < rounds:
            whole = pricing.one_round(
                wanted[:count],
                (self.way(1), plain),
                lambda way, point: self.trainer.stretch(way, point, each_s, weights),
                ledger,
            )
            if not whole or any(self.trainer.gather(self._asked())):
                self._keep_ledger(ledger)
                raise Interrupted
            self._keep_ledger(ledger)
            self.diary.tell_prices(ledger)

    def _keep_ledger(self, ledger: pricing.Ledger) -> None:
        if self.run.rank == 0:
            write_json(self.folder / "prices.json", ledger.to_table())

    def _planned(self) -> Plan:
        plan = plan_strategy(self.facts)
        e = plan.execution
        if e is None or e.strategy != "sync" or e.compression:
            return plan
        point = pricing.setting_of(self.tuner, 1)
        return plan.model_copy(
            update={"execution": e.model_copy(update={"momentum": point.momentum, "lr": point.step})}
        )

    def _chosen(self) -> Point | None:
        """Return what was trained with last, or is to be trained with."""
        action = self.tuner.next() if hasattr(self, "tuner") else None
        if isinstance(action, Train):
            return action.point
        trained = [a.point for a, _ in self.tuner.told if isinstance(a, Train)] if action is not None else []
        return trained[-1] if trained else None

    def _probed_s(self) -> float:
        if not hasattr(self, "tuner"):
            return 0.0
        return sum(r.seconds for a, r in self.tuner.told if isinstance(a, Probe))

    def _tuned_s(self) -> float:
        text = self._shared("prices.json")
        return self._probed_s() + (json.loads(text)["seconds"] if text else 0.0)

    def _share(self) -> float:
        return self._tuned_s() / self.settings.horizon_s
