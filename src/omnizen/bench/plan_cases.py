"""Imagined jobs on which the planner is judged: models with real or drawn rows, on clusters of unlike machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from omnizen.bench.grid import Point
from omnizen.bench.patterns import indices
from omnizen.comm.links import Floats, Links, RankLink
from omnizen.measure.facts import PriceFacts
from omnizen.plan.layouts import sizes
from omnizen.simulate.cluster import Cluster, Law
from omnizen.simulate.network import Network

SAMPLES = 32
"""Of a worker in a step."""
MBIT = 1e6 / 8
RATES_MBIT = (20.0, 100.0, 1000.0)
COMPUTE_S = (0.05, 0.25, 1.0)
UNLIKE = ("equal", "one slow", "two kinds", "all different")
MODELS = ("lm", "cnn", "zipf", "uniform", "blocky", "elements", "dense")
SPREAD = 0.1
"""Of the logarithm of lognormal work times."""


@dataclass(frozen=True, slots=True)
class Model:
    """Gradients of a job.

    Args:
        dense: bytes of each dense gradient, in the order of parameters.
        table: rows, width and kind of the one sparse gradient; None without one.
        rows: rows that a rank touches in a step, ascending, by (rank, step).
    """

    name: str
    dense: tuple[int, ...]
    table: tuple[int, int] | None = None
    rows: Callable[[int, int], np.ndarray] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters."""
        return sum(self.dense) + (4 * self.table[0] * self.table[1] if self.table else 0)


@dataclass(frozen=True, slots=True)
class Case:
    """A job: a model, machines, and what strategies cost in samples."""

    number: int
    model: Model
    links: Links
    cluster: Cluster
    prices: tuple[PriceFacts, ...]
    words: str

    @property
    def size(self) -> int:
        """Workers."""
        return self.cluster.size

    @property
    def name(self) -> str:
        """A short text for rows and tables."""
        return f"{self.number}: {self.words}"


def make_case(number: int, *, most_workers: int = 8) -> Case:
    """Return one of endlessly many cases, the same for the same number everywhere."""
    rng = np.random.default_rng(number)
    size = int(rng.choice([n for n in (2, 4, 8) if n <= most_workers]))
    rate = float(rng.choice(RATES_MBIT))
    links_kind, speed_kind = str(rng.choice(UNLIKE)), str(rng.choice(UNLIKE))
    compute_s, law_number = float(rng.choice(COMPUTE_S)), int(rng.integers(2))
    latency_s = float(rng.choice([1e-4, 5e-4]))
    share = _unlike(links_kind, size, rng)
    links = Links(
        [
            RankLink(up_bytes_per_s=rate * MBIT * s, down_bytes_per_s=rate * MBIT * s, latency_s=latency_s / 2)
            for s in share
        ]
    )
    speed = _unlike(speed_kind, size, rng)
    law: Law = "lognormal" if law_number else "constant"
    # A tenth of an ordinary step is there whatever the batch is.
    own_s = compute_s / speed
    cluster = Cluster(Network.of(links), 0.9 * own_s / SAMPLES, 0.1 * own_s, law, SPREAD)
    model = _model(MODELS[number % len(MODELS)], rng)
    workers = f"{size} workers ({speed_kind}), {compute_s:g} s a step ({law})"
    words = f"{model.name}, {workers}, {rate:g} Mbit/s ({links_kind})"
    return Case(number, model, links, cluster, draw_prices(size, rng), words)


def _unlike(kind: str, size: int, rng: np.random.Generator) -> Floats:
    if kind == "one slow":
        return np.where(np.arange(size) == rng.integers(size), 1 / 3, 1.0)
    if kind == "two kinds":
        return np.where(rng.permutation(size) < size // 2, 0.5, 1.0)
    if kind == "all different":
        return np.exp(rng.uniform(np.log(0.3), 0.0, size))
    return np.ones(size)


def draw_prices(size: int, rng: np.random.Generator) -> tuple[PriceFacts, ...]:
    """Draw what groups and local steps cost, in a quarter of the cases nothing measured."""
    by_group, by_steps = float(rng.choice([0.0, 0.02, 0.1])), float(rng.choice([0.01, 0.05, 0.15]))
    if rng.integers(4) == 0:
        return ()
    found = []
    for groups in sizes(size)[1:]:
        cost = 1 + by_group * (groups - 1)
        found.append(PriceFacts(strategy="groups", groups=groups, samples=cost, low=0.97 * cost, high=1.05 * cost))
    for steps in (4, 16):
        cost = 1 + by_steps * np.log2(steps)
        found.append(
            PriceFacts(strategy="local", local_steps=steps, samples=cost, low=0.97 * cost, high=1.05 * cost)
        )
    return tuple(found)


def _model(kind: str, rng: np.random.Generator) -> Model:
    if kind in ("lm", "cnn"):
        return _bench_case(kind)
    layers = tuple(int(n) * 4 for n in 10 ** rng.uniform(3, 5.5, int(rng.integers(2, 8))))
    if kind == "dense":
        return Model(f"{len(layers)} dense layers, {sum(layers) / 1e6:.2g} MB", layers)
    density = float(rng.choice([0.003, 0.03, 0.2]))
    shape = (100_000, 1) if kind == "elements" else (20_000, 32)
    point = Point(
        hosts=2, rate_mbit=1, rows=shape[0], width=shape[1], density=density,
        skew="zipf" if kind in ("zipf", "elements") else "uniform" if kind == "uniform" else "blocky",
    )  # fmt: skip
    name = f"{shape[0]}x{shape[1]} d={density:g} {point.skew} + {len(layers)} dense layers"
    return Model(name, layers, shape, lambda rank, step: indices(point, rank, step))


@cache
def _bench_case(kind: str) -> Model:
    from omnizen.bench.cases import make_case as of_bench

    case = of_bench(kind, corpus="stdlib") if kind == "lm" else of_bench(kind)
    model = case.make_model(sparse=True, seed=0)
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    tables = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, torch.nn.Embedding)}
    dense = tuple(p.numel() * 4 for name, p in params.items() if name not in tables)
    if kind == "cnn":
        return Model("cnn", dense)

    def rows(rank: int, step: int) -> np.ndarray:
        batch = case.batch_at(step, rank=rank, size=8, batch=SAMPLES, seed=0)
        return np.unique(torch.cat([part.flatten() for part in batch]).numpy())

    num_rows, width = next(p.shape for name, p in params.items() if name in tables)
    return Model("lm", dense, (int(num_rows), int(width)), rows)
