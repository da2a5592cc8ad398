"""Schemes as users know them, each put together from a selector or codec, a reducer and a memory."""

from __future__ import annotations

from omnizen.codecs.common_magnitude import common_magnitude
from omnizen.codecs.values.binarised import one_sided, ternary
from omnizen.codecs.values.exponent_pack import exponent_pack
from omnizen.codecs.values.natural import natural
from omnizen.codecs.values.qsgd import qsgd
from omnizen.codecs.values.sign import sign
from omnizen.codecs.values.terngrad import terngrad
from omnizen.protocols import Reducer, Selector
from omnizen.reducers.agsparse import agsparse
from omnizen.reducers.dense import dense
from omnizen.reducers.feedback import feedback
from omnizen.reducers.gathered import gathered
from omnizen.reducers.local_momentum import local_momentum
from omnizen.reducers.named import Named, named
from omnizen.reducers.selected import selected
from omnizen.reducers.two_way import two_way
from omnizen.reducers.warmup import warmup
from omnizen.selectors.random_block import random_block
from omnizen.selectors.random_k import random_k
from omnizen.selectors.top_k import top_k
from omnizen.selectors.wangni import wangni

DGC_WARMUP = (0.25, 0.0625, 0.015625, 0.004)
"""Densities of the four stages before the final one, where they are above it."""


def _remembered(reducer: Reducer, memory: bool, name: str) -> Named:
    return named(feedback(reducer) if memory else reducer, name)


def dense_packed_scheme() -> Named:
    """All elements to owners and back with packed exponents: what all-reduce does in fewer bytes, without loss."""
    return named(two_way(exponent_pack()), "dense-packed")


def topk_scheme(density: float = 0.01, values: str = "float32", memory: bool = True) -> Named:
    """Top-k of each tensor by all-gather, with error feedback unless ``memory`` is False."""
    return _remembered(selected(top_k(density), agsparse(values)), memory, "topk")


def randomk_scheme(density: float = 0.01, memory: bool = True) -> Named:
    """Random elements of each tensor by all-reduce; rescaled to be unbiased where there is no memory."""
    return _remembered(_summed(random_k(density, unbiased=not memory)), memory, "randomk")


def random_block_scheme(density: float = 0.01, memory: bool = True) -> Named:
    """One random block of each tensor by all-reduce; rescaled to be unbiased where there is no memory."""
    return _remembered(_summed(random_block(density, unbiased=not memory)), memory, "random-block")


def _summed(selector: Selector) -> Reducer:
    return selected(selector, dense())


def detached_scheme(
    density: float = 1 / 64, momentum: float = 0.9, detached: float = 0.3, weight_decay: float = 0.0
) -> Named:
    """Random blocks with detached error feedback; defaults of the authors' scripts (ratio 64, lambda 0.3)."""
    reducer = local_momentum(
        _summed(random_block(density)), momentum, detached=detached, weight_decay=weight_decay
    )  # fmt: skip
    return named(reducer, "def-random-block")


def dgc_scheme(
    density: float = 0.01, momentum: float = 0.9, clip_norm: float | None = None, warmup_steps: int = 0
) -> Named:
    """Deep Gradient Compression: top-k behind local momentum with masking, clipping and a warm-up of the density.

    Args:
        density: final density; the paper's is 0.001.
        clip_norm: largest 2-norm of a rank's contribution.
        warmup_steps: steps of each of up to four stages of larger density (25 %, 6.25 %, 1.6 %, 0.4 %).
    """
    reducer: Reducer = selected(top_k(density), agsparse())
    stages = [stage for stage in DGC_WARMUP if stage > density] if warmup_steps else []
    for place, stage in reversed(list(enumerate(stages, 1))):
        reducer = warmup(selected(top_k(stage), agsparse()), reducer, place * warmup_steps)
    return named(local_momentum(reducer, momentum, masked=True, clip_norm=clip_norm), "dgc")


def sbc_scheme(density: float = 0.01, momentum: float = 0.9) -> Named:
    """Sparse Binary Compression without local steps: one side's top-k as one number, masked momentum."""
    return named(local_momentum(gathered(one_sided(density)), momentum, masked=True), "sbc")


def stc_scheme(density: float = 0.01) -> Named:
    """Sparse Ternary Compression: top-k with signs and one magnitude, to owners and back."""
    return named(feedback(two_way(ternary(density))), "stc")


def onebit_scheme(bucket: int = 0) -> Named:
    """Signs and the mean magnitude of each tensor, with error feedback."""
    return named(feedback(gathered(sign(bucket))), "onebit")


def qsgd_scheme(levels: int = 7, bucket: int = 512, norm: str = "max", memory: bool = False) -> Named:
    """QSGD by all-gather; unbiased, so without memory."""
    return _remembered(gathered(qsgd(levels, bucket, norm)), memory, "qsgd")


def terngrad_scheme(memory: bool = False) -> Named:
    """TernGrad by all-gather; unbiased, so without memory."""
    return _remembered(gathered(terngrad()), memory, "terngrad")


def natural_scheme(memory: bool = False) -> Named:
    """Powers of two by all-gather; unbiased, so without memory."""
    return _remembered(gathered(natural()), memory, "natural")


def wangni_scheme(density: float = 0.05, rounds: int = 2) -> Named:
    """Wangni's selection in its own coding by all-gather; unbiased, so without memory."""
    return named(selected(wangni(density, rounds), gathered(common_magnitude())), "wangni")
