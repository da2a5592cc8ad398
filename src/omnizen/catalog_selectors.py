"""Rows of selectors: which elements of a gradient are sent. Part of the one table in ``catalog.py``."""

from __future__ import annotations

from omnizen import catalog_citations as citations
from omnizen.catalog_rows import SelectorRow


def _selector(factory: str, summary: str, saves: str, citation: str) -> SelectorRow:
    return SelectorRow(
        factory=f"selectors.{factory}", summary=summary, saves=saves, citation=citation,
        kinds=("dense", "element-sparse"),
    )  # fmt: skip


def _sidco(fit: str) -> SelectorRow:
    return SelectorRow(
        factory="selectors.sidco:sidco",
        summary=f"every element beyond a quantile of a fitted {fit} distribution",
        saves="sort and sample; costs a pass a stage, and a number of elements as good as the fit",
        citation=citations.SIDCO,
        kinds=("dense", "element-sparse"),
        settings={"fit": fit},
    )


SELECTORS: dict[str, SelectorRow] = {
    "top-k": _selector(
        "top_k:top_k",
        "the elements of largest magnitude, exactly",
        "all other elements, at the smallest error; costs the search for the k-th largest",
        citations.TOP_K,
    ),
    "threshold": _selector(
        "threshold:threshold",
        "every element from a fixed magnitude on",
        "any search; costs a tuned number and any say over how many are sent",
        citations.THRESHOLD,
    ),
    "sampled-threshold": _selector(
        "sampled_threshold:sampled_threshold",
        "every element from a sample's quantile on, within a quarter of k",
        "the search; costs a number of elements that is known to some percent only",
        citations.WARMUP,
    ),
    "mstopk": _selector(
        "mstopk:mstopk",
        "k elements, nearly the largest, by bisecting for the threshold",
        "the sort, which is slow on GPUs; costs a pass a round",
        citations.MSTOPK,
    ),
    "sidco-exponential": _sidco("exponential"),
    "sidco-gamma": _sidco("gamma"),
    "sidco-pareto": _sidco("pareto"),
    "random-k": _selector(
        "random_k:random_k",
        "elements drawn at random, the same on all ranks",
        "the search, and all indices; costs the large elements among the others",
        citations.RANDOM_K,
    ),
    "random-block": _selector(
        "random_block:random_block",
        "neighbours from a random place on, the same on all ranks",
        "the search, all indices and scattered reads; costs the large elements among the others",
        citations.RANDOM_BLOCK,
    ),
    "wangni": _selector(
        "wangni:wangni",
        "elements drawn with probability min(lambda |g|, 1), divided by it",
        "memory of what was left out, since it is unbiased; costs variance unless few elements hold most",
        citations.WANGNI,
    ),
}
"""Ways to choose elements, by name."""
