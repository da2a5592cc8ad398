"""The largest values as one magnitude and Golomb-coded places: a bit or two for a hundred values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from omnizen.codecs.given import checked_density, num_kept
from omnizen.codecs.index.golomb import Golomb, remainder_bits
from omnizen.codecs.values.quantised import Meta, Quantised, scale_bytes
from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.types import Sparse, Sparsity, Step


def places_bytes(count: int, num_rows: int) -> float:
    """Return the mean bytes of ``count`` random places: ``b* + 1 / (1 - (1 - p)^(2^b*))`` bits each.

    Example:
        >>> round(8 * places_bytes(10_000, 1_000_000) / 10_000, 2)
        8.11
    """
    if not count or count >= num_rows:
        return count / 8
    bits = remainder_bits(count, num_rows)
    return count * (bits + 1 / (1 - (1 - count / num_rows) ** (2**bits))) / 8


@dataclass(frozen=True, slots=True)
class OneSided(Quantised):
    """Send the places of the k largest or of the k smallest values, and their mean: sparse binary compression.

    Of both sides the one with the larger mean magnitude travels; everything else is left out. Saves all but 8.11
    bits of each hundred values at 1 % density. Costs bias: use it behind error feedback with local momentum.

    Args:
        density: ``k = max(1, round(density n))`` of n values, in (0, 1].

    Example:
        >>> from omnizen.types import Dense; x = torch.tensor([1.0, -3.0, 3.0, 2.0, -0.5])
        >>> codec = one_sided(0.4); codec.decode(codec.encode(Dense(x), Step(0))).values
        tensor([0.0000, 0.0000, 2.5000, 2.5000, 0.0000])

    Reference: Sattler, Wiedemann, Mueller and Samek, "Sparse Binary Compression: Towards Distributed Deep Learning
    with minimal Communication", IJCNN 2019, algorithm 2.
    """

    density: float = 0.01
    name: ClassVar[str] = "one-sided"
    unbiased: ClassVar[bool] = False

    def pack(self, flat: Tensor, step: Step) -> tuple[tuple[Tensor, ...], Meta]:
        """Return the mean, and the places."""
        del step  # nothing is left to chance
        k = num_kept(self.density, flat.numel())
        high, low = flat.topk(k, sorted=False), (-flat).topk(k, sorted=False)
        up, down = high.values.double().sum() / max(1, k), low.values.double().sum() / max(1, k)
        magnitude, places = (up, high.indices) if up >= down else (-down, low.indices)
        streams, meta = _places(places.sort().values, flat)
        return (magnitude.to(flat.dtype).view(1), *streams), (k, *meta)

    def unpack(self, streams: tuple[Tensor, ...], meta: Meta, count: int) -> Tensor:
        """Return the mean at its places, zeros elsewhere."""
        magnitude, *places = streams
        found = Golomb().unpack(tuple(places), meta[1:], meta[0], count)
        return magnitude.new_zeros(count).index_fill_(0, found, float(magnitude))

    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the least and the most bytes of ``count`` values."""
        low, high = Golomb().index_bytes(num_kept(self.density, count), count)
        return low + scale_bytes(itemsize), high + scale_bytes(itemsize)

    def mean_bytes(self, pattern: Sparsity) -> float:
        """Return the bytes of a tensor whose largest values lie at random places."""
        count = pattern.num_rows * pattern.width
        return places_bytes(num_kept(self.density, count), count) + scale_bytes(pattern.itemsize)


@dataclass(frozen=True, slots=True)
class Ternary(Quantised):
    """Send the places and signs of the k values of largest magnitude, and their mean magnitude.

    Saves all but 9.11 bits of each hundred values at 1 % density. Costs bias: use it behind error feedback.

    Args:
        density: ``k = max(1, round(density n))`` of n values, in (0, 1].

    Example:
        >>> from omnizen.types import Dense; x = torch.tensor([1.0, -3.0, 3.0, 2.0, -0.5])
        >>> codec = ternary(0.4); codec.decode(codec.encode(Dense(x), Step(0))).values
        tensor([ 0., -3.,  3.,  0.,  0.])

    Reference: Sattler, Wiedemann, Mueller and Samek, "Robust and Communication-Efficient Federated Learning from
    Non-IID Data", IEEE TNNLS 2020 (STC).
    """

    density: float = 0.01
    name: ClassVar[str] = "ternary"
    unbiased: ClassVar[bool] = False

    def pack(self, flat: Tensor, step: Step) -> tuple[tuple[Tensor, ...], Meta]:
        """Return the mean magnitude, a bit a place (set when negative), and the places."""
        del step  # nothing is left to chance
        k = num_kept(self.density, flat.numel())
        places = flat.abs().topk(k, sorted=False).indices.sort().values
        kept = flat[places]
        magnitude = kept.abs().double().sum() / max(1, k)
        streams, meta = _places(places, flat)
        return (magnitude.to(flat.dtype).view(1), pack_fields(kept < 0, 1), *streams), (k, *meta)

    def unpack(self, streams: tuple[Tensor, ...], meta: Meta, count: int) -> Tensor:
        """Return the signed magnitude at its places, zeros elsewhere."""
        magnitude, signs, *places = streams
        found = Golomb().unpack(tuple(places), meta[1:], meta[0], count)
        values = (1 - 2 * unpack_fields(signs, 1, meta[0]).to(magnitude.dtype)) * magnitude
        return magnitude.new_zeros(count).index_copy_(0, found, values)

    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the least and the most bytes of ``count`` values."""
        k = num_kept(self.density, count)
        low, high = Golomb().index_bytes(k, count)
        own = scale_bytes(itemsize) + -(-k // 8)
        return low + own, high + own

    def mean_bytes(self, pattern: Sparsity) -> float:
        """Return the bytes of a tensor whose largest values lie at random places."""
        count = pattern.num_rows * pattern.width
        k = num_kept(self.density, count)
        return places_bytes(k, count) + -(-k // 8) + scale_bytes(pattern.itemsize)


def _places(places: Tensor, flat: Tensor) -> tuple[tuple[Tensor, ...], Meta]:
    """Code ascending places."""
    return Golomb().pack(Sparse(places, flat.new_empty(places.numel(), 0), flat.numel()))


def one_sided(density: float = 0.01) -> OneSided:
    """Make the codec of one side's largest values; see ``OneSided``."""
    return OneSided(checked_density(density, "one-sided"))


def ternary(density: float = 0.01) -> Ternary:
    """Make the codec of signed largest values; see ``Ternary``."""
    return Ternary(checked_density(density, "ternary"))
