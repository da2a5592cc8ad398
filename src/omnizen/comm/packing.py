"""Parts as one run of bytes, and back; the header that tells a peer how to cut them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omnizen.types import Parts, hash_text

FRAME_INTS = 16
"""int64 numbers in a frame. Fixed, so that ranks that disagree can still read what the other one wanted."""
_HEAD_INTS = 6
INLINE_SIZES = FRAME_INTS - _HEAD_INTS

VERBS = ("lost", "all_reduce", "all_gather", "all_to_all", "exchange", "barrier")
DTYPES = tuple(sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str))


def nbytes(parts: Parts) -> int:
    """Return the bytes of all parts."""
    return sum(p.numel() * p.element_size() for p in parts)


def pack(parts: Parts, device: torch.device) -> Tensor:
    """Return the parts one after another as a fresh uint8 tensor ``[nbytes(parts)]`` on ``device``."""
    # lazily conjugated or negated tensors have no bytes of their own yet
    plain = [p.detach().resolve_conj().resolve_neg().contiguous() for p in parts if p.numel()]
    runs = [p.reshape(-1).view(torch.uint8) for p in plain]
    if not runs:
        return torch.empty(0, dtype=torch.uint8, device=device)
    return torch.cat(runs).to(device)  # packed where the parts lie: one transfer a peer


def unpack(buffer: Tensor, rows: Sequence[int], like: Parts) -> Parts:
    """Cut a packed buffer (uint8, ``[bytes]``) into parts that have these first dimensions.

    Example:
        >>> x = [torch.tensor([True, False]), torch.tensor([[1.5, 2.5]])]
        >>> [p.tolist() for p in unpack(pack(x, torch.device("cpu")), [2, 1], x)]
        [[True, False], [[1.5, 2.5]]]
    """
    parts, at = [], 0
    for num_rows, template in zip(rows, like, strict=True):
        shape = (num_rows, *template.shape[1:]) if template.dim() else ()
        length = torch.Size(shape).numel() * template.element_size()
        run = buffer[at : at + length]
        if at % template.element_size():  # a view needs an aligned start
            run = run.clone()
        parts.append(run.view(template.dtype).view(shape))
        at += length
    return parts


def fits(count: int, nbytes: int) -> bool:
    """Return whether so many sizes and bytes of data fit into a frame."""
    return count + _words(nbytes) <= INLINE_SIZES


def _words(nbytes: int) -> int:
    return -(-nbytes // 8)


def sizes(parts: Parts) -> list[int]:
    """Return the first dimension of each part (1 for a scalar)."""
    return [p.shape[0] if p.dim() else 1 for p in parts]


def kind(parts: Parts, *, whole: bool = False) -> int:
    """Return a digest of what ranks must agree on: dtypes and trailing shapes (all of the shape when ``whole``)."""
    texts = [f"{p.dtype}{list(p.shape) if whole else list(p.shape[1:]) if p.dim() else 'scalar'}" for p in parts]
    return hash_text(" ".join(texts))


@dataclass(frozen=True, slots=True)
class Frame:
    """What one rank tells another before data follows: which verb, and the shape of what comes.

    Args:
        verb: one of ``VERBS``; "lost" says that the sender gave up.
        kind: digest of dtypes and trailing shapes; for "lost", the rank that was lost (-1: unknown).
        step: step the sender is in, -1 for none.
        dtype: dtype of the first part, None without parts.
        nbytes: bytes of all parts.
        sizes: first dimension of each part.
        payload: the parts' bytes, where they fit into the frame behind the sizes; they need no message then.
    """

    verb: str
    kind: int
    step: int
    dtype: torch.dtype | None
    nbytes: int
    sizes: tuple[int, ...]
    payload: bytes = b""

    @classmethod
    def of(
        cls, verb: str, parts: Parts, step: int | None, *, whole: bool = False, packed: Tensor | None = None
    ) -> Frame:
        """Describe the parts that one call sends.

        Args:
            packed: the parts' bytes, uint8; they go into the frame if they fit.
        """
        dtype = parts[0].dtype if parts else None
        at = -1 if step is None else step
        rows = tuple(sizes(parts))
        small = packed is not None and fits(len(rows), packed.numel())
        payload = packed.cpu().numpy().tobytes() if small and packed is not None else b""
        return cls(verb, kind(parts, whole=whole), at, dtype, nbytes(parts), rows, payload)

    @property
    def carries(self) -> bool:
        """Whether no data follows: it is in the frame, or there is none."""
        return len(self.payload) == self.nbytes

    def encode(self) -> Tensor:
        """Return the frame as int64 ``[FRAME_INTS]``; sizes that do not fit are left to a message of their own."""
        dtype = -1 if self.dtype is None else DTYPES.index(self.dtype)
        told = self.nbytes if not self.payload else -self.nbytes - 1
        head = [VERBS.index(self.verb), self.kind, self.step, dtype, told, len(self.sizes)]
        inline = list(self.sizes[:INLINE_SIZES])
        if self.payload:
            inline += array("q", self.payload.ljust(8 * _words(self.nbytes), b"\0"))
        return torch.tensor(head + inline + [0] * (INLINE_SIZES - len(inline)), dtype=torch.int64)

    @staticmethod
    def count(numbers: list[int]) -> int:
        """Return how many sizes the encoded frame has, inline or not."""
        return numbers[_HEAD_INTS - 1]

    @classmethod
    def decode(cls, numbers: list[int]) -> Frame:
        """Read a frame; ``numbers`` holds the frame and, behind it, the sizes that did not fit."""
        verb, kind, step, dtype, told, count = numbers[:_HEAD_INTS]
        named = None if dtype < 0 else DTYPES[dtype]
        total = told if told >= 0 else -told - 1
        behind = _HEAD_INTS + count
        payload = array("q", numbers[behind : behind + _words(total)]).tobytes()[:total] if told < 0 else b""
        return cls(VERBS[verb], kind, step, named, total, tuple(numbers[_HEAD_INTS:behind]), payload)

    def agrees(self, other: Frame) -> bool:
        """Whether two ranks are in the same call with parts of the same number and kind."""
        return (self.verb, self.kind, len(self.sizes)) == (other.verb, other.kind, len(other.sizes))

    def __str__(self) -> str:
        at = "outside a step" if self.step < 0 else f"at step {self.step}"
        what = f" of {self.dtype} in {len(self.sizes)} part(s), {self.nbytes} bytes" if self.sizes else ""
        return f"{self.verb}{what} {at}"
