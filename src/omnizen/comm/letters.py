"""Parts as one self-describing run of bytes: who opens a letter need not know what is in it."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from omnizen.comm.packing import DTYPES
from omnizen.types import Parts

_ALIGNED = 16
"""Parts begin at multiples of so many bytes, so that they can be read in place."""


def seal(parts: Parts) -> Tensor:
    """Return a fresh uint8 tensor ``[bytes]`` on the CPU that holds the parts, their dtypes and shapes.

    Example:
        >>> [p.tolist() for p in unseal(seal([torch.tensor([[1.5, 2.5]]), torch.tensor(True)]))]
        [[[1.5, 2.5]], True]
    """
    plain = [p.detach().resolve_conj().resolve_neg().cpu().contiguous() for p in parts]
    words = [word for part in plain for word in (DTYPES.index(part.dtype), part.dim(), *part.shape)]
    head = array("q", [2 + len(words), len(plain), *words])
    begins, at = [], 8 * len(head)
    for part in plain:
        at += -at % _ALIGNED
        begins.append(at)
        at += part.numel() * part.element_size()
    letter = torch.empty(at, dtype=torch.uint8)
    letter[: 8 * len(head)] = torch.frombuffer(head, dtype=torch.uint8)
    for begin, part in zip(begins, plain, strict=True):
        if part.numel():
            run = part.reshape(-1).view(torch.uint8)
            letter[begin : begin + len(run)] = run
    return letter


def unseal(letter: Tensor) -> Parts:
    """Return the parts of a letter; they lie in its memory, one behind the other."""
    (length,) = letter[:8].view(torch.int64).tolist()
    (count, *words) = letter[8 : 8 * length].view(torch.int64).tolist()
    parts, word, at = [], 0, 8 * length
    for _ in range(count):
        dtype, dims = DTYPES[words[word]], words[word + 1]
        shape = torch.Size(words[word + 2 : word + 2 + dims])
        word += 2 + dims
        at += -at % _ALIGNED
        nbytes = shape.numel() * dtype.itemsize
        parts.append(letter[at : at + nbytes].view(dtype).view(shape))
        at += nbytes
    return parts
