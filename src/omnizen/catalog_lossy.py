"""Rows of schemes that lose something, under the names that users of GRACE know."""

from __future__ import annotations

from omnizen import catalog_citations as citations
from omnizen.catalog_rows import ReducerRow


def _scheme(factory: str, summary: str, saves: str, citation: str) -> ReducerRow:
    return ReducerRow(
        factory=f"reducers.schemes:{factory}",
        summary=summary,
        saves=saves,
        citation=citation,
        kinds=("dense",),
        lossy=True,
    )


LOSSY: dict[str, ReducerRow] = {
    "topk": _scheme(
        "topk_scheme",
        "the largest elements of each tensor, with error feedback",
        "all but 1 element in 100, on few ranks; costs the search, and n - 1 ranks' elements",
        citations.TOP_K,
    ),
    "ok-topk": ReducerRow(
        factory="reducers.ok_topk:ok_topk_scheme",
        summary="the largest sums of what ranks select, by regions that hold equally much, with error feedback",
        saves="all but 1 element in 100 on any number of ranks; costs two exchanges and a search now and then",
        citation=citations.OK_TOPK,
        kinds=("dense",),
        lossy=True,
    ),
    "hitopkcomm": ReducerRow(
        factory="reducers.hitopkcomm:hitopkcomm",
        summary="the largest elements of each group's sum between groups of ranks, the whole inside them",
        saves="all but 1 element in 100 between groups; costs a dense exchange inside each",
        citation=citations.MSTOPK,
        kinds=("dense",),
        lossy=True,
    ),
    "randomk": _scheme(
        "randomk_scheme",
        "random elements of each tensor, the same on all ranks, with error feedback",
        "all but 1 element in 100 on any number of ranks; costs more steps than top-k",
        citations.RANDOM_K,
    ),
    "random-block": _scheme(
        "random_block_scheme",
        "one random block of each tensor, the same on all ranks, with error feedback",
        "all but 1 element in 100 on any number of ranks, at no work; costs more steps than top-k",
        citations.RANDOM_BLOCK,
    ),
    "def-random-block": _scheme(
        "detached_scheme",
        "random blocks of momentum, gradients taken at a point ahead of the weights",
        "63 of 64 elements at larger steps than plain feedback bears; costs three more copies of the weights",
        citations.DETACHED,
    ),
    "dgc": _scheme(
        "dgc_scheme",
        "Deep Gradient Compression: the largest elements of momentum that was gathered on each rank",
        "all but 1 element in 100 or 1000 where the optimizer had momentum; needs plain SGD behind it",
        citations.WARMUP,
    ),
    "sbc": _scheme(
        "sbc_scheme",
        "the largest elements on one side as a single number and coded places, with local momentum",
        "all but 0.08 bits of an element at 1 %; needs plain SGD behind it",
        citations.SBC,
    ),
    "stc": _scheme(
        "stc_scheme",
        "the largest elements as signs of a single magnitude, to owners and back, with error feedback",
        "all but 0.2 bits of an element at 1 % on any number of ranks; costs a second exchange",
        citations.STC,
    ),
    "onebit": _scheme(
        "onebit_scheme",
        "signs and the mean magnitude of each tensor, with error feedback",
        "31 of 32 bits on few ranks; costs n - 1 ranks' signs",
        citations.FEEDBACK,
    ),
    "signsgd": ReducerRow(
        factory="reducers.majority:majority",
        summary="signs that most ranks have, by vote",
        saves="29 of 32 bits on any number of ranks; its steps have one size, whatever the gradient's",
        citation=citations.SIGNSGD,
        kinds=("dense",),
        lossy=True,
    ),
    "qsgd": _scheme(
        "qsgd_scheme",
        "15 levels a value, chosen by chance, unbiased",
        "7 of 8 bits on few ranks, without memory; costs variance",
        citations.QSGD,
    ),
    "terngrad": _scheme(
        "terngrad_scheme",
        "three levels a value, chosen by chance, unbiased",
        "19 of 20 bits on few ranks, without memory; costs variance",
        citations.TERNGRAD,
    ),
    "natural": _scheme(
        "natural_scheme",
        "powers of two, chosen by chance, unbiased",
        "23 of 32 bits on few ranks, at an eighth more variance",
        citations.NATURAL,
    ),
    "wangni": _scheme(
        "wangni_scheme",
        "elements drawn with probability min(lambda |g|, 1), unbiased",
        "19 of 20 elements and half of the others' bytes, without memory; costs variance",
        citations.WANGNI,
    ),
}
"""Ways to average that lose something, by scheme name."""
