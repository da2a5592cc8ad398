"""Seconds of a scheme: bytes over the slowest link it uses, rounds times latency, and the processor's merging.

The bytes and rounds come from each reducer's own ``traffic``; the formulas are those of Zen (Wang et al., OSDI
2025, equations 1 and 2), with the inflation of an index in general form, ``rho = 1 + x / (w D)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from omnizen.plan.lazy import LAZY, LazyPull
from omnizen.plan.links import LinkModel
from omnizen.plan.lossy_work import PASSES, Passes
from omnizen.protocols import Reducer
from omnizen.reducers.blocks import BLOCK_ELEMENTS, rows_in_block, touched_blocks
from omnizen.reducers.parameter_server import PARTITIONS
from omnizen.reducers.ranges import rows_by_range
from omnizen.types import Sparsity, Traffic

INDEX_BYTES = 8
"""Indices are int64 while they are merged, whatever travels."""
WIRE_INDEX_BYTES = 4
PAIRWISE = (
    "dense-packed", "agsparse", "agsparse-golomb", "agsparse-packed", "sparcml-split", "sparcml-split-dense",
    "parameter-server", "omnireduce-streaming",
)  # fmt: skip
"""Schemes in which every rank sends to every other one in turn."""
CODED = ("dense-packed", "agsparse-golomb", "agsparse-packed", "zen-cyclic-golomb", "zen-cyclic-packed")
"""Schemes whose work is coding; without measured rates nobody knows whether they pay."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast the slowest device works; infinite where it was not measured.

    Args:
        merge_bytes_per_s: bytes of wide rows merged a second.
        merge_rows_per_s: rows merged a second when a row is one element, where the index is the work.
        copy_bytes_per_s: bytes copied or added a second.
        bits_per_s: rows whose bits are packed or unpacked a second.
        locate_rows_per_s: rows found among an owner's hashed ones a second.
        code_rows_per_s: rows whose places are coded or read a second.
        code_values_per_s: values whose exponents are coded or read a second.
        code_part_s: seconds of coding or reading the places of a message beyond its rows.
        code_values_part_s: the same of exponents.
        select_elements_per_s: elements that a selector looks through a second.
        quantise_elements_per_s: elements quantised or read a second.
    """

    merge_bytes_per_s: float = math.inf
    merge_rows_per_s: float = math.inf
    copy_bytes_per_s: float = math.inf
    bits_per_s: float = math.inf
    locate_rows_per_s: float = math.inf
    code_rows_per_s: float = math.inf
    code_values_per_s: float = math.inf
    code_part_s: float = 0.0
    code_values_part_s: float = 0.0
    select_elements_per_s: float = math.inf
    quantise_elements_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Work:
    """What a processor does for one reduction beside moving bytes.

    Args:
        merged_rows: rows sorted by index and added.
        copied_bytes: bytes copied, filled or added without an index.
        bits: rows whose bits are packed or unpacked.
        located_rows: rows found among an owner's hashed ones.
        coded_rows: rows whose places are coded or read.
        coded_parts: messages that they are in.
        coded_values: values whose exponents are coded or read.
        coded_values_parts: messages that they are in.
        selected: elements that a selector looks through.
        quantised: elements quantised or read.
    """

    merged_rows: float = 0.0
    copied_bytes: float = 0.0
    bits: float = 0.0
    located_rows: float = 0.0
    coded_rows: float = 0.0
    coded_parts: float = 0.0
    coded_values: float = 0.0
    coded_values_parts: float = 0.0
    selected: float = 0.0
    quantised: float = 0.0

    def seconds(self, pattern: Sparsity, rates: Rates) -> float:
        """Return the time that this takes."""
        row_bytes = pattern.width * pattern.itemsize + INDEX_BYTES
        by_row = self.merged_rows * max(row_bytes / rates.merge_bytes_per_s, 1 / rates.merge_rows_per_s)
        by_bit = self.bits / rates.bits_per_s + self.located_rows / rates.locate_rows_per_s
        places = self.coded_rows / rates.code_rows_per_s + self.coded_parts * rates.code_part_s
        values = self.coded_values / rates.code_values_per_s + self.coded_values_parts * rates.code_values_part_s
        looked = self.selected / rates.select_elements_per_s + self.quantised / rates.quantise_elements_per_s
        return by_row + self.copied_bytes / rates.copy_bytes_per_s + by_bit + places + values + looked


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted seconds of one reduction and what they are made of."""

    seconds: float
    wire_s: float
    latency_s: float
    cpu_s: float
    traffic: Traffic


def predict(
    reducer: str | Reducer | LazyPull,
    pattern: Sparsity,
    size: int,
    links: LinkModel,
    merge_bytes_per_s: float | Rates = math.inf,
) -> Cost:
    """Predict the seconds of one reduction.

    Args:
        reducer: a catalogue name or "lazy", or the reducer itself, or what stands for lazily pulled rows.
        pattern: the gradient.
        size: ranks.
        links: what the links allow.
        merge_bytes_per_s: merging rate of the slowest device, or all of its rates.

    Example:
        >>> links = LinkModel.uniform(4, 12.5e6)
        >>> round(predict("dense", Sparsity(250_000, 1, 1.0), 4, links).wire_s, 3)
        0.12
    """
    if isinstance(reducer, str):
        from omnizen import catalog

        named = LazyPull() if reducer == LAZY else catalog.reducer(reducer)
        return predict(named, pattern, size, links, merge_bytes_per_s)
    rates = merge_bytes_per_s if isinstance(merge_bytes_per_s, Rates) else Rates(merge_bytes_per_s)
    if size == 1:
        return Cost(0.0, 0.0, 0.0, 0.0, Traffic(0.0, 0.0, 0))
    traffic = reducer.traffic(pattern, size)
    wire_s = _bytes_in_turn(reducer, pattern, size, traffic) / _bandwidth(reducer.name, links)
    latency_s = traffic.rounds * (links.ring_latency_s if reducer.name == "dense" else links.latency_s)
    cpu_s = work(reducer.name, pattern, size, traffic).seconds(pattern, rates)
    return Cost(wire_s + latency_s + cpu_s, wire_s, latency_s, cpu_s, traffic)


def _bytes_in_turn(reducer: Reducer | LazyPull, pattern: Sparsity, size: int, traffic: Traffic) -> float:
    """Return the bytes that must follow one another: the busiest rank's, or a chain's over several ranks."""
    busiest = traffic.serial_bytes
    levels = size.bit_length() - 1
    folded = size - (1 << levels)
    if reducer.name != "sparcml" or not folded or not reducer.exact:
        return busiest
    # Ranks beyond a power of two: their rows go to a neighbour, through all levels, and the whole sum comes back.
    groups = [1, *((1 << i) + min(folded, 1 << i) for i in range(levels)), size]
    row_bytes = pattern.width * pattern.itemsize + WIRE_INDEX_BYTES
    chain = sum(min(pattern.union_rows(k) * row_bytes, pattern.dense_bytes) for k in groups)
    return max(busiest, chain)


def _bandwidth(scheme: str, links: LinkModel) -> float:
    if scheme == "dense":
        return links.ring_bytes_per_s
    if scheme == "omnireduce":  # numbers of blocks to all, and then a ring
        return min(links.ring_bytes_per_s, links.spread_bytes_per_s)
    if scheme in (*PAIRWISE, LAZY) or scheme.startswith("zen"):
        return links.spread_bytes_per_s
    return links.slowest_bytes_per_s  # recursive doubling, and whatever we know nothing about


def work(scheme: str, pattern: Sparsity, size: int, traffic: Traffic) -> Work:
    """Return what the busiest rank's processor does in a scheme.

    A scheme that is not known here is charged with merging every row that it receives.
    """
    own, union = pattern.rows, pattern.union_rows(size)
    row_bytes = pattern.width * pattern.itemsize
    whole = pattern.dense_bytes
    if scheme == "dense":
        # Copied for the ring, added there, divided. A sparse contribution is also spread over zeros before, and
        # the optimizer then has to update every row.
        return Work(copied_bytes=(2 + (size - 1) / size + (2 if pattern.density < 1 else 0)) * whole)
    if scheme == "agsparse":
        return Work(merged_rows=size * own)
    if scheme == "sparcml":
        stages = size.bit_length() - 1
        sums = [pattern.union_rows(2**i) for i in range(stages)] + ([own] if size > 2**stages else [])
        as_rows = [2 * rows for rows in sums if rows * (row_bytes + WIRE_INDEX_BYTES) < whole]
        # Sums that would be larger as rows are added as whole tensors.
        return Work(merged_rows=sum(as_rows), copied_bytes=2 * whole * (len(sums) - len(as_rows)))
    if scheme in CODED:
        return _coding(scheme, pattern, size)
    if scheme == LAZY:
        # Split one's own rows, add up what came in for one's own part, copy rows for those who asked and from them.
        return Work(merged_rows=own, copied_bytes=3 * own * row_bytes)
    if scheme.startswith("zen"):
        # Split one's own rows by owner, add what came in for one's own part, put the parts of the sum in order.
        if not scheme.endswith("bitmap"):
            return Work(merged_rows=own + union, copied_bytes=own * row_bytes)
        # An owner packs the bits of its part and all read the bits of all parts.
        return Work(
            merged_rows=own + union,
            copied_bytes=own * row_bytes,
            bits=(1 + 1 / size) * pattern.num_rows,
            located_rows=0.0 if "cyclic" in scheme else union / size,
        )
    if scheme in ("sparcml-split", "sparcml-split-dense"):
        # Split one's own rows, add up the range that has most of them, and append the sums of the others.
        hottest = max(rows_by_range(pattern, size, size)[0])
        return Work(merged_rows=size * hottest, copied_bytes=(own + union) * row_bytes)
    if scheme == "parameter-server":
        partitions = rows_by_range(pattern, PARTITIONS, size)[0]
        hottest = max(sum(partitions[server::size]) for server in range(size))
        return Work(merged_rows=size * hottest + union, copied_bytes=own * row_bytes)
    if scheme.startswith("omnireduce"):
        # Own blocks are filled and copied, the union's are summed, divided, scanned for zero rows and put together.
        mine, all_blocks = touched_blocks(pattern, BLOCK_ELEMENTS, size)
        block_bytes = rows_in_block(pattern.width) * row_bytes
        return Work(copied_bytes=(2 * mine + 6 * all_blocks) * block_bytes)
    if scheme in PASSES:
        return _shortening(PASSES[scheme], pattern, size, traffic)
    return Work(merged_rows=traffic.rx_bytes / (row_bytes + INDEX_BYTES))


def _shortening(passes: Passes, pattern: Sparsity, size: int, traffic: Traffic) -> Work:
    elements = pattern.rows * pattern.width
    return Work(
        merged_rows=traffic.rx_bytes / (pattern.itemsize + WIRE_INDEX_BYTES) if passes.selected else 0.0,
        copied_bytes=passes.copied * elements * pattern.itemsize,
        selected=passes.selected * elements,
        quantised=(passes.quantised + passes.quantised_by_rank * size) * elements,
    )


def _coding(scheme: str, pattern: Sparsity, size: int) -> Work:
    own, union = pattern.rows, pattern.union_rows(size)
    if scheme == "dense-packed":
        # Code one's own values by owner, read and add what came in for one's own part, code that, read all parts.
        values = (3 + 1 / size) * pattern.num_rows * pattern.width
        return Work(copied_bytes=4.0 * pattern.dense_bytes, coded_values=values, coded_values_parts=3.0 * size + 1)
    if scheme.startswith("zen"):
        # Code one's own rows by owner, read those of one's own part, code their averages, read everybody's.
        coded, parts = 2 * own + (1 + 1 / size) * union, 3.0 * size + 1
        merged, copied = own + union, own * pattern.width * pattern.itemsize
    else:
        coded, parts, merged, copied = (1 + size) * own, 1.0 + size, size * own, 0.0
    packed = scheme.endswith("packed")
    return Work(
        merged_rows=merged,
        copied_bytes=copied,
        coded_rows=coded,
        coded_parts=parts,
        coded_values=coded * pattern.width if packed else 0.0,
        coded_values_parts=parts if packed else 0.0,
    )
