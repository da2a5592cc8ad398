"""Ok-Topk: the largest elements of the sum, at a traffic that does not grow with the number of ranks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.codecs.coo import index_bytes, index_dtype
from omnizen.kernels.compaction import all_from
from omnizen.kernels.largest import largest
from omnizen.kernels.merge import merge
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.blocks import checked_count
from omnizen.reducers.contribution import checked
from omnizen.reducers.feedback import feedback
from omnizen.reducers.named import Named, named
from omnizen.selectors.given import checked_density, num_kept
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Parts, Reduced, Sparse, Sparsity, State, Step, Traffic

STEPS, LOCAL, GLOBAL, REGIONS = "steps", "local", "global", "regions"
RAISE, RAISES, TOO_MANY = 1.03, 5, 4 / 3
"""Within a step, the local threshold is raised at most so often while it lets more than so many times k through."""
FAR_TOO_MANY = 2.0
"""From so many times k sums on, their threshold is searched at once; the authors' code lets such a step pass."""
LOCAL_BAND, LOCAL_FACTOR = (2 / 3, 5 / 4), 1.012
GLOBAL_BAND, GLOBAL_FACTOR = (2 / 3, 4 / 3), 1.008
"""Outside a band of k, the threshold of the next step is changed by the factor."""


@dataclass(frozen=True, slots=True)
class OkTopk:
    """Sum what each rank selects by regions, keep the k largest sums, share them out evenly, all-gather them.

    About ``4 k (n-1)/n`` elements with their indices each way, whatever n; top-k with an all-gather moves
    ``(n - 1) k``. A step has five parts:

    - select: by the k-th magnitude, which is searched every ``reuse`` steps; between, the threshold is reused,
      raised within a step that lets too many through (and searched among those if that does not do, as while
      residuals grow in the first steps; the authors' code lets them pass), and corrected by 1.2 % for the next;
    - regions: every ``repartition`` steps ranks average the places where each n-th of their selections ends (evenly
      spaced if a rank selected fewer than n elements), so that regions hold equally much however skewed it is;
    - split and reduce: elements go to the owner of their region, in rounds in which rank r sends to r + i, so that
      no two send to the same (those of every comm's all-to-all), and are added up;
    - threshold of sums: every ``reuse`` steps the k-th of all sums' magnitudes, which costs a gathering of them;
      between, reused and corrected by 0.8 %;
    - balance and all-gather: what the owners keep is dealt out in equal contiguous parts, which a ring then
      carries. Balancing is part of every step here; two of the authors' three trainers leave it out.

    What a rank sent is what it selected and all kept; error feedback belongs around it. Indices are integers. The
    first dense steps of the authors' trainers are ``warmup(dense(), ok_topk(), steps)``.

    Args:
        density: fraction of elements to keep, in (0, 1].
        reuse: steps from one exact search of the thresholds to the next, tau' of the paper.
        repartition: steps from one choice of regions to the next, tau.

    Reference: Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022.
    """

    density: float = 0.01
    reuse: int = 32
    repartition: int = 64
    name: ClassVar[str] = "ok-topk"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Dense,)
    agrees: ClassVar[bool] = True
    conserves: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    def init(self, like: Contribution) -> State:
        """Return a state without thresholds; the first step searches them."""
        del like
        return State(scalars={STEPS: 0.0, LOCAL: 0.0, GLOBAL: 0.0})

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Select; what follows needs the others, and begins when the result is waited for, but for the regions."""
        checked(x, self.takes, self.name)
        assert isinstance(x, Dense)
        flat = x.values.detach().reshape(-1)
        k, steps = num_kept(self.density, flat.numel()), int(state.scalars[STEPS])
        with span("select", step.name):
            indices, values, local = self._select(flat, k, steps, state.scalars[LOCAL])
        run = _Run(Sparse(indices, values.view(-1, 1), flat.numel()), k, comm, step)
        regions = None if steps % self.repartition else run.propose()

        def finish() -> Reduced:
            ends = state.extra[REGIONS] if regions is None else run.agreed(regions.wait())
            sums = run.split_and_reduce(ends)
            threshold = state.scalars[GLOBAL]
            if steps % self.reuse == 0 or threshold == 0.0:
                threshold = run.threshold(sums)
            found = _from(sums, threshold)
            counts = run.counts(found)
            if sum(counts) > FAR_TOO_MANY * k and steps % self.reuse:  # known to all ranks
                threshold = run.threshold(sums)
                found = _from(sums, threshold)
                counts = run.counts(found)
            kept = run.gather(run.balance(found, counts))
            with span("decode", step.name):
                value = Sparse(kept.indices, (kept.values / comm.size).to(flat.dtype), flat.numel())
                all_kept = torch.isin(indices, kept.indices, assume_unique=True)
                sent = Sparse(indices[all_kept], values[all_kept].view(-1, 1), flat.numel())
            following = _corrected(threshold, kept.indices.numel(), k, GLOBAL_BAND, GLOBAL_FACTOR)
            after = State(scalars={STEPS: steps + 1.0, LOCAL: local, GLOBAL: following}, extra={REGIONS: ends})
            return Reduced(value, sent, after)

        return Later(finish)

    def _select(self, flat: Tensor, k: int, steps: int, threshold: float) -> tuple[Tensor, Tensor, float]:
        """Return what this rank selects, and the threshold of the next step."""
        if steps % self.reuse == 0 or threshold == 0.0:
            indices, values = largest(flat, k)
            return indices, values, _least(values)
        indices, values = all_from(flat, threshold, k)
        for _ in range(RAISES):
            if indices.numel() <= TOO_MANY * k:
                break
            threshold *= RAISE
            kept = ~(values.abs() < threshold)
            indices, values = indices[kept], values[kept]
        if indices.numel() > TOO_MANY * k:  # the k largest are among them
            at, values = largest(values, k)
            return indices[at], values, _least(values)
        return indices, values, _corrected(threshold, indices.numel(), k, LOCAL_BAND, LOCAL_FACTOR)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the dearest step, as the first: new thresholds and regions, places that ranks do not share.

        Most steps lack the all-reduce of n - 1 numbers and the gathering of magnitudes.
        """
        numel = pattern.num_rows * pattern.width
        k, share = num_kept(self.density, numel), (size - 1) / size
        an_element = index_bytes(numel) + pattern.itemsize
        sums = numel * (1 - (1 - k / numel) ** size) if numel else 0.0
        sum_bytes = max(4, pattern.itemsize)
        magnitudes = (size - 1) * min(float(k), sums / size) * sum_bytes
        moved = share * k * an_element
        summed = share * k * (index_bytes(numel) + sum_bytes)
        return (
            wire_cost.all_reduce(8.0 * (size - 1), size)
            + wire_cost.scheduled(moved, moved, 2, size)
            + wire_cost.scheduled(magnitudes, magnitudes, 1, size)
            + wire_cost.scheduled(8.0 * (size - 1), 8.0 * (size - 1), 1, size)
            + wire_cost.scheduled(0.0, 0.0, 2, size)
            + wire_cost.scheduled(summed, summed, 2, size)
        )


@dataclass(slots=True)
class _Run:
    """One step at one rank."""

    mine: Sparse
    k: int
    comm: Comm
    step: Step

    def propose(self) -> Pending[Tensor]:
        """Begin to add up where each n-th of the ranks' selections ends."""
        size, count = self.comm.size, self.mine.indices.numel()
        whole = self.mine.num_rows if count < size else count
        places = torch.arange(1, size, device=self.mine.indices.device) * whole // size
        return self.comm.all_reduce(places if count < size else self.mine.indices[places])

    def agreed(self, total: Tensor) -> Tensor:
        """Return the mean of the ends, ``[n - 1]`` int64 ascending."""
        return torch.div(total, self.comm.size, rounding_mode="floor")

    def split_and_reduce(self, ends: Tensor) -> Sparse:
        """Send each region to its owner and return the sums of this rank's region."""
        with span("encode", self.step.name):
            marks = torch.searchsorted(self.mine.indices, ends).tolist()
            parts = _sliced(self.mine, [0, *marks, self.mine.indices.numel()])
        received = self.comm.all_to_all(parts).wait()
        with span("decode", self.step.name):
            rows, values = merge([indices for _, indices in received], [values for values, _ in received])
        return Sparse(rows, values, self.mine.num_rows)

    def threshold(self, sums: Sparse) -> float:
        """Return the k-th largest magnitude of all ranks' sums; 0 where there are fewer."""
        _, mine = largest(sums.values.view(-1), min(self.k, sums.values.numel()))
        gathered = self.comm.all_gather([mine.abs()]).wait()
        magnitudes = torch.cat([part for (part,) in gathered])
        if magnitudes.numel() < self.k:
            return 0.0
        return _least(largest(magnitudes, self.k)[1])

    def counts(self, kept: Sparse) -> list[int]:
        """Return how many sums each rank keeps."""
        told = self.comm.all_gather([torch.tensor([kept.indices.numel()], device=kept.indices.device)]).wait()
        return [int(part) for (part,) in told]

    def balance(self, kept: Sparse, counts: list[int]) -> Sparse:
        """Deal what all ranks keep out anew, in the same order and evenly."""
        count, size = kept.indices.numel(), self.comm.size
        first, total = sum(counts[: self.comm.rank]), sum(counts)
        marks = [min(max(total * part // size - first, 0), count) for part in range(size + 1)]
        received = self.comm.all_to_all(_sliced(kept, marks)).wait()
        return _joined(received, kept.num_rows)

    def gather(self, part: Sparse) -> Sparse:
        """Return all ranks' parts."""
        (whole,) = _sliced(part, [0, part.indices.numel()])
        return _joined(self.comm.all_gather(whole).wait(), part.num_rows)


def _sliced(x: Sparse, marks: list[int]) -> list[Parts]:
    """Return ``[values, indices]`` between each two marks."""
    rows = x.indices.to(index_dtype(x.num_rows))
    return [[x.values[a:b], rows[a:b]] for a, b in itertools.pairwise(marks)]


def _joined(parts: list[Parts], num_rows: int) -> Sparse:
    """Join parts that are in order."""
    rows = torch.cat([indices for _, indices in parts]).long()
    return Sparse(rows, torch.cat([values for values, _ in parts]), num_rows)


def _from(sums: Sparse, threshold: float) -> Sparse:
    kept = ~(sums.values.view(-1).abs() < threshold)  # NaN is kept, to be reported
    return Sparse(sums.indices[kept], sums.values[kept], sums.num_rows)


def _least(values: Tensor) -> float:
    """Return the least magnitude that is finite; 0 where none is."""
    sizes = values.abs()
    sizes = sizes[torch.isfinite(sizes)]
    return float(sizes.min()) if sizes.numel() else 0.0


def _corrected(threshold: float, count: int, k: int, band: tuple[float, float], factor: float) -> float:
    low, high = band
    if count < low * k:
        return threshold / factor
    return threshold * factor if count > high * k else threshold


def ok_topk(density: float = 0.01, reuse: int = 32, repartition: int = 64) -> OkTopk:
    """Make Ok-Topk; see ``OkTopk``."""
    who = "ok-topk"
    return OkTopk(
        checked_density(density, who),
        checked_count(reuse, "reuse", who),
        checked_count(repartition, "repartition", who),
    )


def ok_topk_scheme(density: float = 0.01, reuse: int = 32, repartition: int = 64, memory: bool = True) -> Named:
    """Ok-Topk with error feedback, unless ``memory`` is False."""
    made = ok_topk(density, reuse, repartition)
    return named(feedback(made) if memory else made, "ok-topk")
