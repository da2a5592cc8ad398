"""The main job on this machine: a language model on several workers, first by stock DDP and then by a plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from omnizen.bench.job import Job
from omnizen.bench.launch import InLab, Launch, Loopback
from omnizen.bench.summary import Trial, max_relative
from omnizen.bench.trial import Follow, run_trial
from omnizen.errors import OmnizenError, UserError

MOST_WORKERS = 16
BATCHES = (32, 16, 8, 4, 2, 1)
DDP_STEPS, DDP_SHARE = 8, 0.2
OMNIZEN_STEPS, OMNIZEN_SHARE = 100, 0.3
"""Timed steps at most, and the share of the budget that they may take; the rest is start-up and measuring."""
LIMIT_S = 900.0


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What to show.

    Args:
        workers: one a host.
        rate: of each link ("100mbit").
        text: folder of text to train on; None for the standard library's own source.
        seconds: about how long the whole demo may take; few steps of DDP always run.
        paced: pace links in software even where namespaces can be had.
        out: folder of the runs and the report.
    """

    workers: int = 4
    rate: str = "100mbit"
    text: Path | None = None
    seconds: float = 240.0
    paced: bool = False
    out: Path

    def __post_init__(self) -> None:
        from omnizen.lab import parse_rate

        if not 2 <= self.workers <= MOST_WORKERS:
            raise UserError(
                f"the demo runs between 2 and {MOST_WORKERS} workers on one machine, got {self.workers}"
            )
        if not self.seconds > 0:
            raise UserError(f"the demo needs a budget above 0 seconds, got {self.seconds:g}")
        parse_rate(self.rate)

    @property
    def case_options(self) -> dict[str, str]:
        """What the language model reads."""
        return {"corpus": "stdlib"} if self.text is None else {"text": str(self.text)}


@dataclass(frozen=True)
class Network:
    """How the workers will be joined.

    Args:
        launch: starts them.
        shaped: True for shaped links in namespaces, False for loopback paced in software.
        why_not: why namespaces cannot be had, where that is so.
    """

    launch: Launch
    shaped: bool
    why_not: str | None


@dataclass(frozen=True)
class Outcome:
    """Both runs.

    Args:
        ddp: stock DistributedDataParallel.
        omnizen: by plan.
        report: the HTML file.
    """

    ddp: Trial
    omnizen: Trial
    report: Path

    @property
    def common_steps(self) -> int:
        """Steps that both took from the start."""
        return min(len(self.ddp.losses), len(self.omnizen.losses))

    @property
    def losses_off(self) -> float:
        """Largest relative difference of the two losses over the common steps."""
        n = self.common_steps
        return max_relative(self.omnizen.losses[:n], self.ddp.losses[:n])


class Watcher(Protocol):
    """Who shows the demo."""

    def doing(self, text: str) -> None:
        """Something that takes a while begins."""
        ...

    def corpus(self, name: str, tokens: int, words: int, batch: int, note: str) -> None:
        """The text was read."""
        ...

    def network(self, settings: DemoSettings, joined: Network) -> None:
        """The workers will be joined like this."""
        ...

    def begin(self, method: str, run_dir: Path) -> Follow:
        """A run begins; returns who follows its messages."""
        ...

    def end(self, trial: Trial) -> None:
        """A run has ended."""
        ...


def network(settings: DemoSettings) -> Network:
    """Choose shaped links where this machine can have them, else links paced in software."""
    from omnizen.lab import available

    why_not = None if settings.paced else available()
    if settings.paced or why_not is not None:
        return Network(Loopback(settings.workers, settings.rate), False, why_not)
    return Network(InLab(settings.workers, settings.rate), True, None)


def run_demo(settings: DemoSettings, joined: Network, watcher: Watcher) -> Outcome:
    """Train twice and write the report.

    Raises:
        UserError: the text cannot be used.
        OmnizenError: a run failed; says which and why.
    """
    from omnizen.report.page import write_report

    watcher.doing("reading the text")
    batch = _read_text(settings, watcher)
    watcher.network(settings, joined)
    trials = []
    for method, steps, share in (("ddp", DDP_STEPS, DDP_SHARE), ("omnizen", OMNIZEN_STEPS, OMNIZEN_SHARE)):
        place = settings.out / method
        job = Job(
            case="lm", case_options=settings.case_options, method=method, batch=batch, warmup_steps=1, steps=steps,
            min_steps=2, budget_s=share * settings.seconds, limit_s=LIMIT_S, out=place / "answers", run_dir=place,
        )  # fmt: skip
        trial = run_trial(job, joined.launch, watcher.begin(method, place))
        watcher.end(trial)
        if trial.failed:
            raise OmnizenError(f"the {method} run failed: {trial.failed} (its output: {job.out / 'output.txt'})")
        trials.append(trial)
    watcher.doing("writing the report")
    report = write_report([settings.out / "ddp", settings.out / "omnizen"], settings.out / "report.html")
    return Outcome(trials[0], trials[1], report)


def _read_text(settings: DemoSettings, watcher: Watcher) -> int:
    """Read the text once, so that workers find it in the cache; returns the largest batch that it has room for."""
    from omnizen.bench.cases.lm import lm_case

    case = lm_case(**settings.case_options)
    for batch in BATCHES:
        try:
            case.batch_at(0, rank=0, size=settings.workers, batch=batch, seed=0)
        except UserError:
            if batch == BATCHES[-1]:
                raise
            continue
        corpus = case.corpus
        watcher.corpus(corpus.name, len(corpus.ids), corpus.num_words, batch, corpus.note)
        return batch
    raise AssertionError("the loop above returns or raises")
