"""Rows of methods whose payloads are added on the wire: bytes do not grow with the number of ranks."""

from __future__ import annotations

from omnizen import catalog_citations as citations
from omnizen.catalog_rows import CodecRow, ReducerRow

_UNPLANNED = ()
"""A support is the model's, which no measured pattern tells: never the planner's choice."""

SUMMED: dict[str, ReducerRow] = {
    "powersgd": ReducerRow(
        factory="reducers.powersgd:powersgd_scheme",
        summary="matrices, and touched rows of tables, as products of two thin ones, with error feedback",
        saves="all but r (n + m) of n m elements, on any number of ranks; costs thin matrix products",
        citation=citations.POWERSGD,
        kinds=("dense", "row-sparse"),
        lossy=True,
    ),
    "shared-scale": ReducerRow(
        factory="reducers.shared_scale:shared_scale_scheme",
        summary="whole numbers on a common scale, wide enough for their sum, with error feedback",
        saves="3/4 of the bytes on any number of ranks; costs precision, more of it the more ranks there are",
        citation=citations.THC,
        kinds=("dense",),
        lossy=True,
    ),
    "count-sketch": ReducerRow(
        factory="reducers.count_sketch:count_sketch_scheme",
        summary="the largest elements of the average, found in a sum of sketches, with error feedback",
        saves="9/10 of the bytes on any number of ranks; costs hashing every element, and a second exchange",
        citation=citations.SKETCHED_SGD,
        kinds=("dense",),
        lossy=True,
    ),
    "compact": ReducerRow(
        factory="reducers.compact:compact",
        summary="the elements of a support that ranks share, without indices: for pruned models",
        saves="what is zero on all ranks; costs a look at every element, and everything until a support is known",
        citation=citations.PACTRAIN,
        kinds=_UNPLANNED,
    ),
    "compact-ternary": ReducerRow(
        factory="reducers.compact:ternary_scheme",
        summary="the same with three levels an element, chosen by chance, in fields wide enough for their sum",
        saves="7 of 8 bytes of those elements on up to 7 ranks; costs variance",
        citation=citations.PACTRAIN,
        kinds=_UNPLANNED,
        lossy=True,
    ),
}
"""Ways to average, by scheme name."""

SUMMED_CODECS: dict[str, CodecRow] = {
    "sketch": CodecRow(
        factory="codecs.count_sketch:count_sketch",
        summary="a table of counters to which each element is added with a random sign; sums of tables hold sums",
        saves="9/10 of the elements; costs noise from collisions",
        citation=citations.COUNT_SKETCH,
        kinds=("dense",),
        lossy=True,
    ),
    "shared-scale-int8": CodecRow(
        factory="codecs.shared_scale:shared_scale_int8",
        summary="bytes on a scale known to all, with room for sums",
        saves="3/4 of float32; costs precision, and what is beyond the scale",
        citation=citations.THC,
        kinds=("dense",),
        lossy=True,
    ),
}
"""Ways to pack, by name."""
