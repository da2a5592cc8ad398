"""``omnizen bench strategies``: whole strategies trained in the lab, beside what formulas and simulation expect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from omnizen.bench.errand import send
from omnizen.bench.launch import InLab, Launch
from omnizen.bench.limits import check_hosts, check_names
from omnizen.bench.rows import Row, failed
from omnizen.errors import UserError

if TYPE_CHECKING:
    from omnizen.bench.strategies_worker import StrategiesAnswer

BATCHES = {"cnn": (32,), "lm": (8,), "flights": (256,)}
KINDS = ("sync", "groups", "local")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run.

    Args:
        cpu: each host's relative speed, 1 for the fastest.
        rate: of each link, before dilation ("100mbit").
        dilation: factor that slows links and processors, or ``auto``.
        batches: samples of a worker and step where shares are even, a configuration each; the case's by default.
        kinds: of strategies.
        rounds: how often each strategy is trained, in turn with the others.
        seconds: for which it is trained in a round, first updates apart.
        rate_s: for which each rank's rate is measured at each of three batch sizes.
        draws: prices that are drawn for each configuration, a case of the planner's regret each.
        enough_s: seconds after which only the first round is still completed.
        limit_s: seconds after which everything ends in any case.
    """

    case: str = "cnn"
    hosts: int = 4
    cpu: tuple[float, ...] = ()
    rate: str = "100mbit"
    dilation: float | Literal["auto"] = "auto"
    batches: tuple[int, ...] = ()
    kinds: tuple[str, ...] = KINDS
    rounds: int = 3
    seconds: float = 3.0
    rate_s: float = 1.5
    draws: int = 6
    enough_s: float = 400.0
    limit_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_names("case", [self.case], BATCHES)
        check_names("unknown kind of strategy", self.kinds, KINDS)
        if "sync" not in self.kinds:
            raise UserError("strategies are compared with synchronous training: sync must be one of them")
        check_hosts(self.hosts, self.cpu)
        if min((1, *self.batches)) < 1 or self.rounds < 1 or self.draws < 0 or not self.seconds > 0:
            raise UserError("batches and rounds must be 1 or more, draws 0 or more, and seconds above 0")


def run_strategies(
    settings: Settings, *, launch: Launch | None = None, on_line: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Train all strategies within one start of the hosts; returns rows of times, saturation and regret."""
    from omnizen.bench.strategies_worker import StrategiesAnswer, StrategiesJob
    from omnizen.lab import parse_rate

    start: Launch = launch or InLab(settings.hosts, settings.rate, settings.dilation, settings.cpu)
    job = StrategiesJob(
        case=settings.case, batches=list(settings.batches or BATCHES[settings.case]), kinds=list(settings.kinds),
        rounds=settings.rounds, seconds=settings.seconds, rate_s=settings.rate_s, seed=settings.seed,
        enough_s=settings.enough_s, limit_s=settings.limit_s,
    )  # fmt: skip
    shared: dict[str, Any] = {
        "bench": "strategies", "case": settings.case, "hosts": settings.hosts,
        "rate_mbit": parse_rate(settings.rate) / 1e6,
    }  # fmt: skip
    answers, wrong = send(job, "omnizen.bench.strategies_worker", StrategiesAnswer, start, on_line=on_line)
    first = next((a for a in answers if a.rank == 0), None)
    about: dict[str, Any] = {
        "cpu": list(settings.cpu), "rounds": settings.rounds, "seconds": settings.seconds,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    rows = [] if first is None else rows_of(first, settings, shared, about)
    if wrong or not rows:
        rows.append(failed(wrong or "nothing was measured", **shared, method="all", params=about))
    return rows


def rows_of(
    answer: StrategiesAnswer, settings: Settings, shared: dict[str, Any], about: dict[str, Any]
) -> list[Row]:
    """Return the rows of all configurations of which every strategy was trained."""
    from omnizen.bench.strategies_judged import judge

    about = {**about, "network": answer.network.network, "dilation": answer.network.dilation}
    rows: list[Row] = []
    for found in answer.found:
        if found.update_s and all(found.update_s):
            rows += judge(found, settings.kinds, settings.draws, shared, about)
    return rows
