"""The largest elements of the average, found in a sum of sketches, then averaged exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omnizen.codecs.count_sketch import ROWS, TABLE, checked_table, columns_for, shared_hash
from omnizen.kernels.merge import sum_dtype
from omnizen.kernels.sketch import median_of, sketch
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import Memoryless
from omnizen.reducers.contribution import checked
from omnizen.reducers.feedback import feedback
from omnizen.reducers.named import Named, named
from omnizen.selectors.given import checked_density
from omnizen.selectors.top_k import top_k
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Reduced, Sparse, Sparsity, State, Step, Traffic


@dataclass(frozen=True, slots=True)
class SketchedTopK(Memoryless):
    """All-reduce count sketches, take the top k of their medians on every rank alike, all-reduce those k values.

    Finds elements that are large in the *average*, which no rank may see in its own part, without a look at
    anybody's indices: bytes do not grow with the number of ranks, while gathered top-k grows with n. Costs two
    exchanges in a row, ``rows`` hashes an element each way, and the elements that collisions hide. Wrap it in
    ``feedback``: what is not among the k is lost otherwise. The values are those of the gradient itself, not of
    the sketch.

    Args:
        density: fraction of elements to recover, in (0, 1].
        table: counters of the sketch as a fraction of the elements; a few times the density.
        rows: of counters.

    Reference: Ivkin et al., "Communication-efficient Distributed SGD with Sketching", NeurIPS 2019.
    """

    density: float = 0.01
    table: float = TABLE
    rows: int = ROWS
    name: ClassVar[str] = "count-sketch"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Dense,)
    agrees: ClassVar[bool] = True
    conserves: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to add up the sketches."""
        checked(x, self.takes, self.name)
        seed = shared_hash(step)
        with span("encode", step.name):
            flat = x.values.detach().reshape(-1).to(sum_dtype(x.values.dtype))
            columns = columns_for(flat.numel(), self.rows, self.table)
            added = comm.all_reduce(sketch(flat, self.rows, columns, seed))

        def finish() -> Reduced:
            table = added.wait()
            with span("select", step.name):
                found = top_k(self.density).select(median_of(table, flat.numel(), seed), step).indices
                mine = flat[found]
            total = comm.all_reduce(mine).wait()
            dtype = x.values.dtype

            def at(values) -> Sparse:  # type: ignore[no-untyped-def]
                return Sparse(found, values.to(dtype).view(-1, 1), flat.numel())

            return Reduced(at(total / comm.size), at(mine), state)

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the ring of sketches and the ring of values."""
        numel = pattern.num_rows * pattern.width
        counters = self.rows * columns_for(numel, self.rows, self.table)
        values = top_k(self.density).keeps(numel)[1]
        itemsize = max(4, pattern.itemsize)
        return wire_cost.all_reduce(counters * itemsize, size) + wire_cost.all_reduce(values * itemsize, size)


def count_sketch(density: float = 0.01, table: float = TABLE, rows: int = ROWS) -> SketchedTopK:
    """Make the average of the elements that a sum of sketches shows; see ``SketchedTopK``."""
    checked_table(rows, table)
    return SketchedTopK(checked_density(density, "count-sketch"), table, rows)


def count_sketch_scheme(
    density: float = 0.01, table: float = TABLE, rows: int = ROWS, memory: bool = True
) -> Named:
    """Top-k of a sum of sketches, with error feedback unless ``memory`` is False."""
    reducer = count_sketch(density, table, rows)
    return named(feedback(reducer) if memory else reducer, "count-sketch")
