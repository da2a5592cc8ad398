"""Rows of what goes around methods."""

from __future__ import annotations

from omnizen import catalog_citations as citations
from omnizen.catalog_rows import WrapperRow

_SPARSE = ("row-sparse", "element-sparse")

WRAPPERS: dict[str, WrapperRow] = {
    "feedback": WrapperRow(
        factory="reducers.feedback:feedback",
        summary="what a reducer did not send is given to it again in the next step",
        saves="the accuracy of lossy reducers; costs memory of one gradient",
        citation=citations.FEEDBACK,
        kinds=("dense", *_SPARSE),
    ),
    "warmup": WrapperRow(
        factory="reducers.warmup:warmup",
        summary="another reducer for the first steps",
        saves="the accuracy of lossy reducers early in training; costs bytes for those steps",
        citation=citations.WARMUP,
        kinds=("dense", *_SPARSE),
        settings={"steps": 100},
    ),
    "by-size": WrapperRow(
        factory="reducers.by_size:by_size",
        summary="small tensors by one reducer, large ones by another",
        saves="work on tensors that one message carries",
        citation="Omnizen",
        kinds=("dense", *_SPARSE),
    ),
    "gathered": WrapperRow(
        factory="reducers.gathered:gathered",
        summary="everybody's packed contribution to everybody, unpacked and averaged",
        saves="what the codec saves on few ranks; costs n - 1 payloads a rank",
        citation=citations.GRACE,
        kinds=("dense", *_SPARSE),
    ),
    "selected": WrapperRow(
        factory="reducers.selected:selected",
        summary="only the elements that a selector chooses are given to a reducer",
        saves="all other elements; costs what they held, unless feedback is put around it",
        citation=citations.TOP_K,
        kinds=("dense",),
    ),
    "adaptive": WrapperRow(
        factory="reducers.adaptive:adaptive",
        summary="elements beyond SIDCo's fitted threshold, whose number of stages is remembered and adapted",
        saves="all other elements without a search; costs a pass over the tensor for each stage",
        citation=citations.SIDCO,
        kinds=("dense",),
    ),
    "local-momentum": WrapperRow(
        factory="reducers.local_momentum:local_momentum",
        summary="momentum on each rank, then a reducer with error feedback",
        saves="the accuracy of lossy reducers with momentum; costs memory of two gradients",
        citation=citations.WARMUP,
        kinds=("dense",),
    ),
    "hierarchical": WrapperRow(
        factory="reducers.hierarchical:hierarchical",
        summary="sums inside groups of ranks, another reducer across, each rank with a share",
        saves="bytes across slow links between groups; costs two exchanges inside them",
        citation=citations.MSTOPK,
        kinds=("dense", *_SPARSE),
        settings={"groups": 2},
    ),
    "two-way": WrapperRow(
        factory="reducers.two_way:two_way",
        summary="parts packed to their owners, averages packed on the way back",
        saves="what the codec saves on any number of ranks; costs a second exchange and a second loss",
        citation=citations.STC,
        kinds=("dense",),
    ),
    "named": WrapperRow(
        factory="reducers.named:named",
        summary="the same reducer under another name",
        saves="nothing",
        citation="Omnizen",
        kinds=("dense", *_SPARSE),
        settings={"name": "named"},
    ),
    "pipe": WrapperRow(
        factory="codecs.pipe:pipe",
        summary="one codec packs what another one gives; also written first | second",
        saves="what both save",
        citation="Omnizen",
        kinds=("dense", *_SPARSE),
    ),
    "paired": WrapperRow(
        factory="codecs.paired:paired",
        summary="one codec packs where rows are, another one their values",
        saves="what both save",
        citation=citations.DEEPREDUCE,
        kinds=_SPARSE,
    ),
}
"""What goes around methods, by name."""
