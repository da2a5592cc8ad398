"""A sparse parameter server: partitions of the rows dealt out to servers, every rank being worker and server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from omnizen.codecs.cast import checked_values
from omnizen.codecs.coo import Coo, row_bytes
from omnizen.kernels.partition import divide
from omnizen.protocols import Comm, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import WireFormat
from omnizen.reducers.blocks import checked_count
from omnizen.reducers.contribution import checked
from omnizen.reducers.owned import push_pull
from omnizen.reducers.ranges import range_of, rows_by_range
from omnizen.spans import span
from omnizen.types import Contribution, Reduced, Sparse, Sparsity, State, Step, Traffic

PARTITIONS = 64


@dataclass(frozen=True, slots=True)
class ParameterServer(WireFormat):
    """Push rows to the servers of their partitions, pull all averages: ``2 (n-1)/n`` of own and union rows if even.

    Partition p holds the p-th of ``partitions`` equal ranges and lives on server ``p % n``. More partitions spread
    a hot range over more servers; Zen's hash is the limit of that. Parallax' workers pull only the rows that they
    read next; an average that all ranks must hold is the union, so here everybody pulls that.

    Args:
        partitions: ranges that the rows are cut into; ``partitions.fit_partitions`` finds a number from samples.
        values: ``"float32"`` sends values as they are, ``"float16"`` and ``"bfloat16"`` 16 bits of them; a server
            counts the rounding of its averages as not sent.

    Reference: Kim et al., "Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks", EuroSys 2019.
    """

    partitions: int = PARTITIONS
    values: str = "float32"
    name: ClassVar[str] = "parameter-server"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Sparse,)

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin the push; the pull begins when the result is waited for."""
        checked(x, self.takes, self.name)
        assert isinstance(x, Sparse)
        with span("encode", step.name):
            server = torch.remainder(range_of(x.indices, x.num_rows, self.partitions), comm.size)
            divided = divide(x.indices, server, comm.size)
        return push_pull(x, divided, lambda _: Coo(self.values), self.values, state, comm, step)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at the busiest rank, from the rows in each server's partitions."""
        a_row = row_bytes(pattern, self.values)
        own, union = rows_by_range(pattern, self.partitions, size)
        return wire_cost.owners(
            [a_row * sum(own[server :: size]) for server in range(size)],
            [a_row * sum(union[server :: size]) for server in range(size)],
        )  # fmt: skip


def parameter_server(partitions: int = PARTITIONS, values: str = "float32") -> ParameterServer:
    """Make the sparse parameter server; see ``ParameterServer``."""
    counted = checked_count(partitions, "partitions", "parameter-server")
    return ParameterServer(counted, checked_values(values, "parameter-server"))
