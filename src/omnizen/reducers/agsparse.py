"""Everybody's rows to everybody, added up once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omnizen.codecs.cast import checked_values, wire_dtype
from omnizen.codecs.coo import Coo, row_bytes
from omnizen.kernels.merge import merge
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import WireFormat
from omnizen.reducers.contribution import checked
from omnizen.spans import span
from omnizen.types import Contribution, Reduced, Sparse, Sparsity, State, Step, Traffic


@dataclass(frozen=True, slots=True)
class AgSparse(WireFormat):
    """All-gather the rows and sum them: ``(n - 1) rho d M`` bytes each way.

    The cheapest scheme for few ranks or little overlap; costs more than dense once ``n d rho > 2``. torch's own
    sparse all-reduce sends 8-byte indices and adds n times; this sends 4-byte ones and merges once.

    Args:
        values: ``"float32"`` sends values as they are, ``"float16"`` and ``"bfloat16"`` 16 bits of them.

    Reference: AGsparse in Wang et al., "Zen", OSDI 2025, section 2.3.
    """

    values: str = "float32"
    name: ClassVar[str] = "agsparse"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Sparse,)

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average."""
        checked(x, self.takes, self.name)
        assert isinstance(x, Sparse)
        dtype = x.values.dtype
        codec = Coo(self.values)
        with span("encode", step.name):
            packed = codec.encode(Sparse(x.indices, x.values.detach(), x.num_rows), step)
        pending = comm.all_gather(list(packed.streams))

        def finish() -> Reduced:
            gathered = pending.wait()
            with span("decode", step.name):
                rows, total = merge([indices for _, indices in gathered], [values for values, _ in gathered])
                sent = codec.decode(packed) if wire_dtype(dtype, self.values) != dtype else None
            return Reduced(Sparse(rows, total.div_(comm.size).to(dtype), x.num_rows), sent, state)

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at each rank."""
        moved = (size - 1) * pattern.rows * row_bytes(pattern, self.values)
        return wire_cost.scheduled(moved, moved, 2, size)


def agsparse(values: str = "float32") -> AgSparse:
    """Make the all-gather of rows; see ``AgSparse``."""
    return AgSparse(checked_values(values, "agsparse"))
