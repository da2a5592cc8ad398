"""What gradients look like: which rows or elements they touch, alone and together with other workers'.

Definitions 3 to 5 of Zen (Wang et al., OSDI 2025): overlap, densification and skewness.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from omnizen.codecs.balance import imbalance, owner_counts
from omnizen.codecs.ownership import PARTITIONS, Partition
from omnizen.errors import UserError
from omnizen.kernels.nonzero_rows import nonzero_rows
from omnizen.measure.facts import ITEMSIZES, BalanceFacts, GradientFacts, Kind
from omnizen.protocols import Comm
from omnizen.reducers.blocks import BLOCK_ELEMENTS, num_blocks, rows_in_block, touched
from omnizen.reducers.ranges import PROFILE_RANGES, profile
from omnizen.types import Imbalance, Parts, hash_text

DENSE_FROM = 0.5
"""From this density on a gradient counts as dense."""
SPARSE_ELEMENTS_BELOW = 0.25
"""Below this density of elements, indices and values together are surely less than the dense tensor."""
MAX_PAIRS = 32
SAMPLED_ROWS = 50_000
"""Of larger index sets a share is looked at, the same rows on all ranks."""


def classify(grad: Tensor) -> Kind:
    """Say what kind of gradient this is.

    Sparse COO is row-sparse. A dense matrix of which less than half of the rows hold anything is row-sparse, too.
    A dense tensor with few non-zero elements is element-sparse; everything else is dense.

    Example:
        >>> classify(torch.eye(10)[:, :2].repeat(1, 3))
        'row-sparse'
    """
    if grad.layout == torch.sparse_coo:
        return "row-sparse"
    if grad.numel() == 0:
        return "dense"
    used = grad != 0
    if grad.ndim >= 2 and grad.shape[0] > 1:
        rows = used.flatten(1).any(1).sum().item()
        elements_in_rows = used.sum().item() / max(1, rows * (grad.numel() // grad.shape[0]))
        if rows < DENSE_FROM * grad.shape[0] and elements_in_rows >= SPARSE_ELEMENTS_BELOW:
            return "row-sparse"
    return "element-sparse" if used.sum().item() < SPARSE_ELEMENTS_BELOW * grad.numel() else "dense"


def nonzero_indices(grad: Tensor, kind: Kind) -> Tensor | None:
    """Return what a gradient touches, ``[k]`` ascending: rows or flat elements by its kind; None when dense."""
    if kind == "dense":
        return None
    if kind == "element-sparse":
        flat = grad.to_dense() if grad.layout == torch.sparse_coo else grad
        return (flat.reshape(-1) != 0).nonzero().view(-1)
    if grad.layout == torch.sparse_coo:
        return torch.unique(grad._indices()[0])
    return nonzero_rows(grad.reshape(grad.shape[0], -1))


@dataclass(slots=True)
class _Seen:
    """Sums over the observed steps of one gradient."""

    shape: tuple[int, ...]
    dtype: str
    by_row: bool
    steps: int = 0
    density: float = 0.0
    union_rows: dict[int, list[float]] = field(default_factory=dict)
    skewness: list[float] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    own_rows: float = 0.0
    own_profile: Tensor | float = 0.0
    union_profile: Tensor | float = 0.0
    own_blocks: float = 0.0
    union_blocks: float = 0.0
    imbalance: dict[Partition, list[Imbalance]] = field(default_factory=dict)


class PatternProbe:
    """Watches the index sets of a few real steps on all ranks.

    Args:
        comm: all ranks call the same methods with the same names in the same order.
        groupings: random groupings of the ranks whose unions are averaged, for each group size.

    Example:
        >>> from omnizen.comm.threads import run_ranks
        >>> def body(comm):
        ...     probe = PatternProbe(comm)
        ...     probe.observe("table", torch.tensor([comm.rank]), num_rows=10, width=4, itemsize=4)
        ...     return probe.finish()[0].densification
        >>> run_ranks(2, body)[0]
        {'1': 1.0, '2': 2.0}
    """

    def __init__(self, comm: Comm, *, groupings: int = 4) -> None:
        self.comm, self.groupings = comm, groupings
        self._seen: dict[str, _Seen] = {}

    def observe(
        self,
        name: str,
        indices: Tensor | None,
        num_rows: int,
        width: int,
        itemsize: int,
        *,
        shape: tuple[int, ...] | None = None,
        dtype: str | None = None,
    ) -> None:
        """Take in one step's gradient of one parameter (collective when it has indices).

        Args:
            name: the parameter's.
            indices: ``[k]`` rows that are not zero, in any order, repeats allowed; None for a dense gradient.
            num_rows: rows of the whole tensor.
            width: elements in a row; 1 means element sparsity.
            itemsize: bytes of a value.
            shape: the tensor's, when it is not ``[num_rows, width]``.
            dtype: name of the value's type, when its size does not tell.
        """
        if dtype is None:
            dtype = next((name for name, size in ITEMSIZES.items() if size == itemsize), "float32")
        shape = shape or ((num_rows, width) if width > 1 else (num_rows,))
        by_row = len(shape) > 1 and shape[0] == num_rows
        seen = self._seen.setdefault(name, _Seen(shape, dtype, by_row))
        seen.steps += 1
        if indices is None or not num_rows:  # an empty tensor has nothing to leave out
            seen.density += 1.0
            return
        own = torch.unique(indices.to(torch.int64))
        if own.numel() and not (int(own[0]) >= 0 and int(own[-1]) < num_rows):
            raise UserError(f"{name}: indices reach from {int(own[0])} to {int(own[-1])}, it has {num_rows} rows")
        own = own.to(self.comm.device)
        block_rows = rows_in_block(width)
        blocks = touched(own, block_rows)
        sizes = own.new_tensor([own.numel(), blocks.numel()])
        by_owner = torch.stack([owner_counts(own, p, num_rows, self.comm.size) for p in PARTITIONS])
        answers = self.comm.all_gather([torch.cat([sizes, profile(own, num_rows)]), by_owner]).wait()
        told = [part for part, _ in answers]
        counts = [int(part[0]) for part in told]
        seen.density += sum(counts) / len(counts) / num_rows
        share = -(-max(counts) // SAMPLED_ROWS)
        gathered = self.comm.all_gather([_every(own, share), _every(blocks, share)]).wait()
        sets = [part for part, _ in gathered]
        self._add(seen, sets, num_rows, random.Random(hash_text(f"{name}/{seen.steps}")))
        self._add_places(seen, torch.stack(told), gathered, num_rows, num_blocks(num_rows, block_rows))
        together = torch.cat(sets)
        scale = sum(counts) / max(1, together.numel())
        self._add_owners(seen, torch.stack([part for _, part in answers]), together.unique(), scale, num_rows)

    def _add_owners(self, seen: _Seen, pushed: Tensor, union: Tensor, scale: float, num_rows: int) -> None:
        """Add how evenly owners share: ``pushed`` is ``[rank, partition, owner]``; ``scale`` undoes sampling."""
        for number, partition in enumerate(PARTITIONS):
            sums = scale * owner_counts(union, partition, num_rows, self.comm.size)
            seen.imbalance.setdefault(partition, []).append(imbalance(pushed[:, number], sums.tolist()))

    def _add_places(self, seen: _Seen, told: Tensor, gathered: list[Parts], num_rows: int, all_blocks: int) -> None:
        """Add where rows and blocks lie; one rank's are counted in full, unions are scaled up from a sample."""
        mean = told.double().mean(0)
        union, blocks = (torch.unique(torch.cat([parts[i] for parts in gathered])) for i in (0, 1))
        sampled, sampled_blocks = (sum(parts[i].numel() for parts in gathered) / len(gathered) for i in (0, 1))
        seen.own_profile = seen.own_profile + mean[2:]
        if sampled:
            seen.union_profile = seen.union_profile + profile(union, num_rows) * (mean[0] / sampled)
        seen.own_blocks += float(mean[1]) / all_blocks
        if sampled_blocks:
            seen.union_blocks += min(1.0, blocks.numel() * float(mean[1]) / sampled_blocks / all_blocks)

    def _add(self, seen: _Seen, sets: list[Tensor], num_rows: int, rng: random.Random) -> None:
        size = len(sets)
        seen.own_rows += sum(s.numel() for s in sets) / size
        for k in _group_sizes(size):
            unions = [_union(sets[r] for r in group) for group in self._groups(size, k, rng)]
            seen.union_rows.setdefault(k, []).append(sum(unions) / len(unions))
        seen.skewness += [_skewness(s, num_rows, size) for s in sets if s.numel()]
        for a, b in _pairs(size, rng):
            less = min(sets[a].numel(), sets[b].numel())
            if less:
                both = sets[a].numel() + sets[b].numel() - _union([sets[a], sets[b]])
                seen.overlap.append(both / less)

    def _groups(self, size: int, k: int, rng: random.Random) -> list[list[int]]:
        if k == size:
            return [list(range(size))]
        groups = []
        for _ in range(self.groupings):
            order = rng.sample(range(size), size)
            groups += [order[i : i + k] for i in range(0, size - k + 1, k)]
        return groups

    def finish(self) -> list[GradientFacts]:
        """Return what was seen, averaged over steps; equal on all ranks, which have seen the same sets."""
        return [self._facts(name, seen) for name, seen in self._seen.items()]

    def _facts(self, name: str, seen: _Seen) -> GradientFacts:
        density = seen.density / seen.steps
        if density >= DENSE_FROM:
            return GradientFacts(name=name, kind="dense", shape=seen.shape, dtype=seen.dtype)
        gammas = {"1": 1.0}
        for k, unions in sorted(seen.union_rows.items()):
            gammas[str(k)] = sum(unions) / seen.own_rows if seen.own_rows else 1.0
        return GradientFacts(
            name=name,
            kind="row-sparse" if seen.by_row else "element-sparse",
            shape=seen.shape,
            dtype=seen.dtype,
            density=density,
            densification=gammas,
            skewness=_mean(seen.skewness, 1.0),
            overlap=min(1.0, _mean(seen.overlap, 0.0)),
            own_profile=_rounded(seen.own_profile, seen.steps),
            union_profile=_rounded(seen.union_profile, seen.steps),
            blocks={str(BLOCK_ELEMENTS): (seen.own_blocks / seen.steps, seen.union_blocks / seen.steps)},
            imbalance={
                partition: BalanceFacts(
                    rx=_mean([step.rx for step in found], 1.0), tx=_mean([step.tx for step in found], 1.0)
                )
                for partition, found in seen.imbalance.items()
            },
        )


def _every(indices: Tensor, share: int) -> Tensor:
    """Return about one in ``share`` indices, chosen by a hash of the index."""
    if share <= 1:
        return indices
    mixed = (indices * -0x61C8864680B583EB) >> 33  # Fibonacci hashing, wraps around in int64
    return indices[mixed % share == 0]


def _group_sizes(size: int) -> list[int]:
    powers = [2**i for i in range(1, size.bit_length()) if 2**i <= size]
    return [*powers, size] if size > 1 and size not in powers else powers


def _union(sets: Iterable[Tensor]) -> int:
    return int(torch.unique(torch.cat(list(sets))).numel())


def _pairs(size: int, rng: random.Random) -> list[tuple[int, int]]:
    pairs = list(itertools.combinations(range(size), 2))
    return pairs if len(pairs) <= MAX_PAIRS else rng.sample(pairs, MAX_PAIRS)


def _skewness(indices: Tensor, num_rows: int, parts: int) -> float:
    """Return the largest range's density over the whole's, with ``parts`` equal ranges."""
    bounds = torch.tensor([-(-num_rows * i // parts) for i in range(parts + 1)], device=indices.device)
    counts = torch.searchsorted(indices, bounds).diff()
    widths = bounds.diff().clamp(min=1)
    return float((counts / widths).max() / (indices.numel() / num_rows))


def _rounded(total: Tensor | float, steps: int) -> tuple[float, ...]:
    """Return a profile's mean over steps, to a hundredth of a row: files stay readable."""
    rows = total if isinstance(total, Tensor) else torch.zeros(PROFILE_RANGES)
    return tuple(round(each / steps, 2) for each in rows.tolist())


def _mean(values: list[float], if_none: float) -> float:
    return sum(values) / len(values) if values else if_none
