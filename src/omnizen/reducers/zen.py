"""Balanced Parallelism: every rank sums an even share of the rows, whatever the pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from omnizen.codecs.bitmap import Bitmap, hash_bitmap
from omnizen.codecs.cast import checked_values
from omnizen.codecs.coo import Coo, index_dtype, row_bytes, value_bytes
from omnizen.codecs.ownership import Ownership, Partition, checked_partition
from omnizen.errors import UserError, nearest
from omnizen.protocols import Comm, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import WireFormat
from omnizen.reducers.contribution import checked
from omnizen.reducers.owned import push_pull
from omnizen.spans import span
from omnizen.types import Contribution, Imbalance, Reduced, Sparse, Sparsity, State, Step, Traffic

Pull = Literal["coo", "bitmap"]
PULLS: tuple[Pull, ...] = ("coo", "bitmap")


@dataclass(frozen=True, slots=True)
class Zen(WireFormat):
    """Push each row to its owner, average there, pull all averages: ``(n-1)/n (1 + gamma_n) rho d M`` bytes.

    A hash spreads the rows, so no owner is hot however skewed the gradient is. The best scheme for many ranks whose
    rows overlap (gamma_n well below n); for few ranks AGsparse or SparCML can be cheaper. Waits must come in the
    same order on all ranks, because the pull starts in the wait.

    With 16-bit values the owner counts the rounding of its averages as not sent, so that ``sent`` and
    ``value`` still balance.

    Args:
        partition: ``"hash"`` is even for every pattern; ``"cyclic"`` (row % n) needs no table.
        pull: ``"coo"`` sends averages with indices, ``"bitmap"`` with one bit for each row that the owner could
            have; the bitmap pays where rows are narrow (width 1) and more than 1 in 32 is in the union.
        values: ``"float32"`` sends values as they are, ``"float16"`` and ``"bfloat16"`` 16 bits of them.
        seed: of the hash; equal on all ranks.

    Reference: Wang et al., "Zen: Empowering Distributed Training with Sparsity-driven Data Synchronization",
    OSDI 2025, sections 3.1-3.3 and equation 1.
    """

    partition: Partition = "hash"
    pull: Pull = "coo"
    values: str = "float32"
    seed: int = 0
    takes: ClassVar[tuple[type[Contribution], ...]] = (Sparse,)

    @property
    def name(self) -> str:
        """The scheme's name in plans."""
        return f"zen-{self.pull}" if self.partition == "hash" else f"zen-{self.partition}-{self.pull}"

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin the push; the pull begins when the result is waited for."""
        checked(x, self.takes, self.name)
        assert isinstance(x, Sparse)
        with span("encode", step.name):
            owners = Ownership(self.partition, x.num_rows, comm.size, self.seed)
            divided = owners.divide(x.indices, index_dtype(x.num_rows))
        return push_pull(x, divided, lambda rank: self._pull_codec(rank, comm.size), self.values, state, comm, step)

    def _pull_codec(self, owner: int, size: int) -> Coo | Bitmap:
        if self.pull == "coo":
            return Coo(self.values)
        return hash_bitmap(size, owner, partition=self.partition, seed=self.seed, values=self.values)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at the busiest rank: Zen's equation 1, with rows of any width.

        Owners' shares are even only on average; how uneven they are is part of the pattern.
        """
        share = (size - 1) / size
        union = pattern.union_rows(size)
        push = share * pattern.rows * row_bytes(pattern, self.values)
        pulled_bytes = row_bytes if self.pull == "coo" else value_bytes
        pull = share * union * pulled_bytes(pattern, self.values)
        uneven = pattern.imbalance.get(self.partition, Imbalance())
        bits = share * pattern.num_rows / 8 if self.pull == "bitmap" else 0.0
        return wire_cost.scheduled(uneven.rx * push, uneven.tx * push, 2, size) + wire_cost.scheduled(
            uneven.rx * pull + bits, uneven.tx * pull + bits, 2, size
        )


def zen(partition: str = "hash", pull: str = "coo", values: str = "float32", seed: int = 0) -> Zen:
    """Make Balanced Parallelism; see ``Zen``."""
    if pull not in PULLS:
        raise UserError(f"zen: pull: {nearest(pull, PULLS)}")
    chosen: Pull = "coo" if pull == "coo" else "bitmap"
    return Zen(checked_partition(partition, "zen"), chosen, checked_values(values, "zen"), seed)
