"""What really happens in an imagined job: real rows over simulated links, and events for all that is around them.

Nothing here uses the planner's cost formulas, so that its regret means something.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from omnizen import catalog
from omnizen.bench.plan_cases import SAMPLES, Case
from omnizen.comm.links import Floats
from omnizen.comm.simulated import SimulatedComm, simulate_ranks
from omnizen.measure.facts import DeviceFacts, Facts, GradientFacts, Kind, StepFacts
from omnizen.measure.gradient import PatternProbe
from omnizen.measure.links import measure_links, measure_meetings
from omnizen.plan.cost import CODED
from omnizen.plan.efficiency import SPREAD_OF_NORMAL
from omnizen.plan.layouts import Layout
from omnizen.plan.timeline import fill_buckets
from omnizen.simulate.cluster import Job, Reduction
from omnizen.simulate.grouped import grouped
from omnizen.simulate.local import local_steps
from omnizen.simulate.phases import Fixed, Meet, Phase, Ring, Swap
from omnizen.simulate.synchronous import synchronous
from omnizen.types import Contribution, Dense, Sparse, Step

TABLE = "table"
BACKWARD_SHARE = 2 / 3
FREE = 1e18
"""Rates of merging: virtual clocks charge nothing for it."""
NOISE = 0.02
"""Of the rates of computing that the planner is told."""
STEPS = 24
"""Simulated for one time where work times vary."""


@dataclass(frozen=True)
class Truth:
    """A case, what is measured of it, and how long things take.

    Args:
        facts: what the planner is told.
        scheme_s: seconds of a reduction of the table by scheme; empty without a table.
    """

    case: Case
    facts: Facts
    scheme_s: dict[str, float]

    @cached_property
    def row_bytes(self) -> Floats:
        """Bytes ``[n]`` of the rows that each worker sends when it sends them itself."""
        table, rows = self.case.model.table, self.case.model.rows
        if table is None or rows is None:
            return np.zeros(self.case.size)
        return np.array([len(rows(r, 1)) * (4 * table[1] + 4.0) for r in range(self.case.size)])

    def sync_s(self, samples: tuple[int, ...], bucket_bytes: int, scheme: str) -> float:
        """Return seconds of a step, for a sample."""
        reductions = self._buckets(bucket_bytes)
        if scheme:
            reductions.append(Reduction([Fixed(self.scheme_s[scheme])]))
        job = self._job(reductions)
        steps = 2 if self.case.cluster.law == "constant" else STEPS
        return 1 / synchronous(job, self.case.cluster, np.array(samples), steps=steps).samples_per_s

    def groups_s(self, layout: Layout) -> float:
        """Return seconds a sample of compute groups; rows of tables are gathered inside."""
        members = max(len(group) for group in layout.groups)
        whole = self._job([], self._pushed(members))
        inside = []
        for group in layout.groups:
            phases: list[Phase] = [Meet(16.0), Swap(self.row_bytes[list(group)])]
            table = [Reduction(phases)] if self.case.model.table else []
            inside.append(self._job([*self._buckets(25 * 2**20), *table]))
        updates = 40 * len(layout.groups)
        batch = np.array(layout.samples)
        out = grouped(whole, self.case.cluster, layout.groups, batch, inside=inside, updates=updates)
        return 1 / out.samples_per_s

    def local_s(self, every: tuple[int, ...]) -> float:
        """Return seconds a sample of local steps."""
        job, batch = self._job([]), np.full(self.case.size, float(SAMPLES))
        return 1 / local_steps(job, self.case.cluster, batch, np.array(every), rounds=6).samples_per_s

    def _buckets(self, bucket_bytes: int) -> list[Reduction]:
        dense = self.case.model.dense
        done, out = 0, []
        for bucket in fill_buckets(dense, bucket_bytes):
            done += sum(dense[i] for i in bucket)
            out.append(Reduction([Ring(sum(dense[i] for i in bucket))], done / sum(dense)))
        return out

    def _job(self, reductions: list[Reduction], nbytes: float | None = None) -> Job:
        model_bytes = float(self.case.model.nbytes) if nbytes is None else nbytes
        return Job(reductions, model_bytes, BACKWARD_SHARE, [Meet(8.0)])

    def _pushed(self, members: int) -> float:
        model, size = self.case.model, self.case.size
        if model.table is None or model.rows is None:
            return float(sum(model.dense))
        of = [model.rows(r, 1) for r in range(size)]
        each = [len(np.unique(np.concatenate(of[i : i + members]))) for i in range(0, size, members)]
        rows = (np.mean(each) + len(np.unique(np.concatenate(of)))) / 2
        return float(sum(model.dense) + rows * (4 * model.table[1] + 4))


def find_out(case: Case) -> Truth:
    """Measure a case as training does, and reduce a later step's rows by every scheme."""
    table, rows = case.model.table, case.model.rows

    def body(comm: SimulatedComm) -> tuple[Facts, dict[str, float]]:
        probe, seconds = PatternProbe(comm), dict[str, float]()
        if table is not None and rows is not None:
            mine = torch.from_numpy(rows(comm.rank, 0))
            probe.observe(TABLE, mine, table[0], table[1], 4)
        links = measure_links(comm, 60.0, clock=lambda: comm.now_s)
        meetings = measure_meetings(comm, repeats=3, clock=lambda: comm.now_s)
        gradients = probe.finish() if table is not None else []
        for scheme in _schemes(case) if table is not None else []:
            assert table is not None
            assert rows is not None
            indices = torch.from_numpy(rows(comm.rank, 1))
            x = Sparse(indices, torch.ones(len(indices), table[1]), table[0])
            reducer = catalog.reducer(scheme)
            comm.barrier()
            began = comm.now_s
            contribution: Contribution = x if Sparse in reducer.takes else Dense(x.to_dense())
            reducer.start(contribution, reducer.init(contribution), comm, Step(0, name=TABLE)).wait()
            seconds[scheme] = comm.now_s - began
        facts = Facts(
            torch_version=torch.__version__, world_size=case.size, links=links, meetings=meetings,
            gradients=gradients,
        )  # fmt: skip
        return facts, seconds

    results = simulate_ranks(case.size, body, links=case.links).results
    slowest = {scheme: max(r[1][scheme] for r in results) for scheme in results[0][1]}
    return Truth(case, _told(case, results[0][0]), slowest)


def _schemes(case: Case) -> list[str]:
    kind = _kind(case)
    return [name for name in catalog.schemes(kind) if name not in CODED]  # what coding costs is not played


def _told(case: Case, measured: Facts) -> Facts:
    """Add what a rank's own clock tells, with some noise."""
    rng = np.random.default_rng((case.number, 1))
    cluster, devices, slowest_s = case.cluster, [], 0.0
    for rank in range(case.size):
        rates = {}
        for count in (SAMPLES // 2, SAMPLES):
            mean_s = float(cluster.mean_s(np.full(case.size, float(count)))[rank])
            rates[str(count)] = count / (mean_s * float(np.exp(NOISE * rng.standard_normal())))
        slowest_s = max(slowest_s, SAMPLES / rates[str(SAMPLES)])
        spread = cluster.spread * SPREAD_OF_NORMAL if cluster.law == "lognormal" else 0.0
        devices.append(
            DeviceFacts(
                rank=rank, host=f"host{rank}", device="cpu", name="imagined", cores=1, memory_bytes=2**33,
                merge_bytes_per_s=FREE, merge_rows_per_s=FREE, copy_bytes_per_s=FREE, bits_per_s=FREE,
                locate_rows_per_s=FREE,
                samples_per_s=rates, samples_per_s_spread=dict.fromkeys(rates, spread),
            )
        )  # fmt: skip
    dense = [
        GradientFacts(name=f"dense{i}", kind="dense", shape=(nbytes // 4,))
        for i, nbytes in enumerate(case.model.dense)
    ]
    step = StepFacts(compute_s=slowest_s, backward_s=BACKWARD_SHARE * slowest_s, samples=SAMPLES)
    tables = [g.model_copy(update={"kind": _kind(case)}) for g in measured.gradients]
    return measured.model_copy(
        update={
            "devices": devices,
            "gradients": [*tables, *dense],
            "step": step,
            "prices": list(case.prices),
        }
    )


def _kind(case: Case) -> Kind:
    return "element-sparse" if case.model.table and case.model.table[1] == 1 else "row-sparse"
