"""The values that pass between rooms: payloads, layouts, states, traffic. No logic beyond arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

Parts = list[Tensor]
"""What one rank sends to another in one exchange: tensors whose dtypes and trailing shapes all ranks agree on."""


@dataclass(frozen=True, slots=True)
class Dense:
    """Every element is present.

    Args:
        values: any shape; reducers see it flat, ``[numel]``.
        layout: the tensors that lie in a flat buffer, for methods that work tensor by tensor (top-k, signs, ...);
            without one, ``values`` is one tensor.
    """

    values: Tensor
    layout: Layout | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.values.numel() * self.values.element_size()


@dataclass(frozen=True, slots=True)
class Sparse:
    """Some rows of a ``[num_rows, width]`` tensor; width 1 is element sparsity.

    Args:
        indices: ``[k]`` int64, strictly ascending, each in ``[0, num_rows)``.
        values: ``[k, width]``, one row per index.
        num_rows: rows of the whole tensor.
    """

    indices: Tensor
    values: Tensor
    num_rows: int

    @property
    def width(self) -> int:
        """Elements in a row."""
        return self.values.shape[1]

    @property
    def density(self) -> float:
        """Fraction of rows that are kept."""
        return self.indices.numel() / self.num_rows if self.num_rows else 0.0

    def to_dense(self) -> Tensor:
        """Return the whole ``[num_rows, width]`` tensor."""
        out = torch.zeros(self.num_rows, self.width, dtype=self.values.dtype, device=self.values.device)
        return out.index_copy_(0, self.indices, self.values)


@dataclass(frozen=True, slots=True)
class Packed:
    """What a codec made for the wire.

    Args:
        streams: tensors to send, in an order that the codec knows (values first, then indices).
        meta: small integers that decoding needs (counts, shapes); they travel as int64.
        codec: name of the codec that made it.
    """

    streams: tuple[Tensor, ...]
    meta: tuple[int, ...]
    codec: str

    @property
    def nbytes(self) -> int:
        """Bytes of all streams, without the metadata."""
        return sum(s.numel() * s.element_size() for s in self.streams)


Payload = Dense | Sparse | Packed
Contribution = Dense | Sparse


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one named tensor lies in a flat buffer."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements of the tensor."""
        return int(torch.Size(self.shape).numel())


@dataclass(frozen=True, slots=True)
class Layout:
    """A frozen flat layout: name to slice. Fixed before the first step, keyed by name, never by position."""

    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, named_shapes: Sequence[tuple[str, Sequence[int]]]) -> Layout:
        """Lay tensors out one after another in the order given."""
        slots, offset = [], 0
        for name, shape in named_shapes:
            slots.append(Slot(name, offset, tuple(shape)))
            offset += slots[-1].numel
        return cls(tuple(slots))

    @property
    def numel(self) -> int:
        """Elements of the flat buffer."""
        return self.slots[-1].offset + self.slots[-1].numel if self.slots else 0

    def view(self, flat: Tensor, slot: Slot) -> Tensor:
        """Return the slot's tensor as a view into ``flat`` (``[numel]``)."""
        return flat[slot.offset : slot.offset + slot.numel].view(slot.shape)


@dataclass(slots=True)
class State:
    """What a reducer keeps between steps, in one shape for all so that saving and resetting is written once.

    Args:
        slots: tensors shaped like the contribution (residuals, momenta).
        scalars: numbers.
        extra: any other tensors (thresholds, factors).
    """

    slots: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """What a method may know about the step it works in.

    Args:
        n: number of the optimizer step, from 0.
        shared_seed: equal on all ranks; the source of choices that ranks must share.
        name: the tensor or bucket at work, so that choices and errors can name it.
        loss_scale: what the loss was multiplied by (mixed precision); memories are kept without it.
    """

    n: int
    shared_seed: int = 0
    name: str = ""
    loss_scale: float = 1.0

    def shared_rng(self) -> torch.Generator:
        """Return a CPU generator that is equal on all ranks for this step and tensor name."""
        mixed = hash_text(f"{self.shared_seed}/{self.n}/{self.name}")
        return torch.Generator().manual_seed(mixed)

    def named(self, name: str) -> Step:
        """Return the same step for another tensor."""
        return replace(self, name=name)


def hash_text(text: str) -> int:
    """Return a 63-bit digest of a text, equal on every machine and Python run."""
    import hashlib

    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class Reduced:
    """What a reduction gave.

    Args:
        value: the average over ranks, of the contribution's kind (or the other kind where a scheme densifies).
        sent: what this rank really contributed; ``x - sent`` is the residual. None means all of it.
        state: the state to pass to the next call.
        staleness: versions by which ``value`` may be old.
    """

    value: Contribution
    sent: Contribution | None
    state: State
    staleness: int = 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank receives and sends in one reduction, at the busiest rank.

    Args:
        rx_bytes: payload bytes received, with the size headers.
        tx_bytes: payload bytes sent, with the size headers.
        rounds: messages that must follow one another, each paying the latency once.
        chain_bytes: bytes that must follow one another over several ranks, where that is more than the busiest
            rank's own: in schemes with phases, one rank may hold all up in the first and another in the second.
    """

    rx_bytes: float
    tx_bytes: float
    rounds: int
    chain_bytes: float = 0.0

    @property
    def serial_bytes(self) -> float:
        """Bytes that the time of a reduction is made of."""
        return max(self.rx_bytes, self.tx_bytes, self.chain_bytes)

    def __add__(self, other: Traffic) -> Traffic:
        chain = self.serial_bytes + other.serial_bytes if self.chain_bytes or other.chain_bytes else 0.0
        return Traffic(
            self.rx_bytes + other.rx_bytes, self.tx_bytes + other.tx_bytes, self.rounds + other.rounds, chain
        )


@dataclass(frozen=True, slots=True)
class Imbalance:
    """How far the busiest rank is above an even share when rows go to owners and their sums to everybody.

    Args:
        rx: rows that it receives over ``(n - 1) / n`` of one rank's rows and of the union's.
        tx: rows that it sends, over the same.
    """

    rx: float = 1.0
    tx: float = 1.0


@dataclass(frozen=True, slots=True)
class Sparsity:
    """What is known of one gradient's pattern before it is reduced; the planner's and the formulas' input.

    Args:
        num_rows: rows of the tensor (elements when ``width`` is 1).
        width: elements in a row.
        density: fraction of rows one worker has, ``d``; 1 for a dense gradient.
        densification: ``gamma_k = d_k / d`` for k workers, keys 1, 2, 4, ... and n.
        skewness: max over n equal ranges of the range's density over ``d`` (Zen, definition 5).
        overlap: mean over pairs of ``|A and B| / min(|A|, |B|)`` (Zen, definition 3).
        itemsize: bytes of one value.
        own_profile: rows of one worker in each of some equal ranges, for schemes that divide rows by range; empty
            when it was not measured.
        union_profile: rows that any worker has in each of them.
        blocks: by elements in a block, the fractions of blocks that one worker and that any worker touches.
        imbalance: of each division of the rows among owners, by its name (``"hash"``, ``"cyclic"``); what was not
            measured counts as even.
    """

    num_rows: int
    width: int
    density: float
    densification: dict[int, float] = field(default_factory=lambda: {1: 1.0})
    skewness: float = 1.0
    overlap: float = 0.0
    itemsize: int = 4
    own_profile: tuple[float, ...] = ()
    union_profile: tuple[float, ...] = ()
    blocks: dict[int, tuple[float, float]] = field(default_factory=dict)
    imbalance: Mapping[str, Imbalance] = field(default_factory=dict)

    @property
    def dense_bytes(self) -> int:
        """Bytes of the whole tensor, ``M``."""
        return self.num_rows * self.width * self.itemsize

    @property
    def rows(self) -> float:
        """Rows that one worker has."""
        return self.density * self.num_rows

    def union_rows(self, k: int) -> float:
        """Rows in the union of k workers, from the measured densification.

        Between measured k the value is interpolated in log k; beyond the last it is bounded by independence.
        """
        import math

        if k <= 1:
            return self.rows
        if k in self.densification:
            return min(float(self.num_rows), self.densification[k] * self.rows)
        known = sorted(self.densification.items())
        if k > known[-1][0]:
            last_k, last_gamma = known[-1]
            covered = min(1.0, last_gamma * self.density)
            gamma = (1.0 - (1.0 - covered) ** (k / last_k)) / self.density if self.density else 1.0
        else:
            hi = next(i for i, (known_k, _) in enumerate(known) if known_k > k)
            (k0, g0), (k1, g1) = known[hi - 1], known[hi]
            gamma = g0 + (g1 - g0) * (math.log(k) - math.log(k0)) / (math.log(k1) - math.log(k0))
        return min(float(self.num_rows), gamma * self.rows)
