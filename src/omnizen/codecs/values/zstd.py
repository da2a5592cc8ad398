"""A general compressor, given the bytes of floats in an order that it can do something with."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from omnizen.codecs.values.lossless import Lossless
from omnizen.errors import UserError


def library() -> Any:
    """Return the module of Zstandard: of the standard library from Python 3.14 on, its backport before.

    Raises:
        UserError: the backport is not installed.
    """
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise UserError(f"the codec zstd needs the package {name}; pip install 'omnizen[zstd]' brings it") from None


@dataclass(frozen=True, slots=True)
class Zstd(Lossless):
    """Compress values by Zstandard, all first bytes before all second ones and so on.

    Saves what repeats: zeros and exponents; little else of a gradient does, as mantissas are noise. Costs far more
    time than the other codecs, so it pays on slow links, and where many values are zero.

    Args:
        level: of the compressor, 1 (fast) to 19.

    Raises:
        UserError: when encoding without the library.

    Reference: Collet and Kucherawy, "Zstandard Compression and the application/zstd Media Type", RFC 8878; bytes
    by place as in Blosc's shuffle filter.
    """

    level: int
    name: ClassVar[str] = "zstd"

    def pack(self, flat: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Return the compressed bytes."""
        planes = flat.view(torch.uint8).view(-1, flat.element_size()).t().contiguous()
        data = library().compress(planes.cpu().numpy().data, level=self.level)
        return (torch.frombuffer(bytearray(data), dtype=torch.uint8).to(flat.device),), ()

    def unpack(self, streams: tuple[Tensor, ...], meta: tuple[int, ...], count: int, dtype: torch.dtype) -> Tensor:
        """Return the values."""
        del meta
        zstd, data = library(), streams[0]
        size = count * dtype.itemsize
        reader = zstd.ZstdDecompressor()
        try:
            planes = reader.decompress(data.cpu().numpy().tobytes(), max_length=size + 1)
        except zstd.ZstdError as error:
            raise UserError(f"{self.name}: damaged payload: {error}") from None
        if len(planes) != size or not reader.eof:
            raise UserError(f"{self.name}: damaged payload: it holds {len(planes)} of {size} bytes")
        if not size:
            return torch.empty(0, dtype=dtype, device=data.device)
        whole = torch.frombuffer(bytearray(planes), dtype=torch.uint8).to(data.device)
        return whole.view(dtype.itemsize, count).t().contiguous().view(-1).view(dtype)

    def packed_bytes(self, count: int, itemsize: int) -> tuple[float, float]:
        """Return the least and the most bytes of ``count`` values: all alike, or nothing that repeats."""
        size = count * itemsize
        return min(9, size), size + (size >> 8) + 64


def zstd(level: int = 1) -> Zstd:
    """Make the codec of compressed values; see ``Zstd``."""
    if not 1 <= level <= 19:
        raise UserError(f"zstd: level must be from 1 to 19, got {level}")
    return Zstd(level)
