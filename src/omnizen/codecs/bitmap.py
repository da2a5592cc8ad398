"""Rows with one bit for each row that could be there, in place of indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omnizen.codecs.cast import checked_values, narrow
from omnizen.codecs.coo import value_bytes
from omnizen.codecs.given import DTYPES, dtype_code, kind, packed_by
from omnizen.codecs.ownership import Ownership, Partition, checked_partition
from omnizen.codecs.pipe import Pipeable
from omnizen.errors import UserError
from omnizen.kernels.bits import pack_bits, unpack_bits
from omnizen.types import Packed, Payload, Sparse, Sparsity, Step

MOST_BITS = 2**32
"""Rows for which the bits take half a GiB."""


@dataclass(frozen=True, slots=True)
class Bitmap(Pipeable):
    """Send rows' values and a bitmap over the rows that one owner may have: ``k w D + |I_j| / 8`` bytes.

    Saves where more than 1 row in 32 is there and rows are narrow. With one owner it is a plain bitmap; with n
    owners the bitmaps of all owners together take ``num_rows / 8`` bytes, whatever n (Zen's hash bitmap).

    Args:
        partition: how rows are divided, ``"hash"`` or ``"cyclic"``.
        n: owners.
        owner: whose rows these are.
        seed: of the hash.
        values: ``"float32"`` sends values as they are, ``"float16"`` and ``"bfloat16"`` in 16 bits.

    Raises:
        UserError: when a row to encode belongs to another owner.

    Example:
        >>> import torch; rows = Sparse(torch.tensor([0, 9]), torch.ones(2, 3), num_rows=10)
        >>> bitmap().encode(rows, Step(0)).nbytes  # 24 of values, 2 of bits
        26

    Reference: Wang et al., "Zen", OSDI 2025, section 3.3, algorithm 2.
    """

    partition: Partition
    n: int
    owner: int
    seed: int
    values: str
    name: str
    takes: ClassVar[type[Payload]] = Sparse
    gives: ClassVar[type[Payload]] = Packed
    summable: ClassVar[bool] = False

    @property
    def exact(self) -> bool:
        """Whether values travel as they are."""
        return self.values == "float32"

    @property
    def unbiased(self) -> bool:
        """Whether values travel as they are; rounding to nearest is not unbiased."""
        return self.exact

    def encode(self, payload: Payload, step: Step) -> Packed:
        """Pack into values and bits."""
        del step  # the same in every step
        rows = kind(payload, Sparse, self.name)
        code = dtype_code(rows.values.dtype, self.name)
        if rows.num_rows > MOST_BITS:
            raise UserError(f"{self.name}: one bit a row for {rows.num_rows} rows is too much; use indices (coo)")
        owned = self._owned(rows.num_rows)
        foreign = owned.owner(rows.indices) != self.owner
        if bool(foreign.any()):
            row = int(rows.indices[foreign][0])
            raise UserError(f"{self.name}: row {row} does not belong to owner {self.owner} of {self.n}")
        bits = pack_bits(owned.position(rows.indices, self.owner), owned.num_owned(self.owner))
        values = narrow(rows.values, self.values).contiguous()
        return Packed((values, bits), (rows.num_rows, code), self.name)

    def decode(self, payload: Payload) -> Sparse:
        """Return the rows, values in their own type."""
        packed = packed_by(payload, self.name)
        values, bits = packed.streams
        num_rows, dtype = packed.meta
        indices = self._owned(num_rows).rows_at(unpack_bits(bits), self.owner)
        return Sparse(indices, values.to(DTYPES[dtype]), num_rows)

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the bytes of one encoded contribution of this owner, twice."""
        bits = -(-self._owned(pattern.num_rows).num_owned(self.owner) // 8)
        size = pattern.rows * value_bytes(pattern, self.values) + bits
        return size, size

    def _owned(self, num_rows: int) -> Ownership:
        return Ownership(self.partition, num_rows, self.n, self.seed)


def bitmap(values: str = "float32") -> Bitmap:
    """Make the codec of rows with one bit for every row of the tensor; see ``Bitmap``."""
    return Bitmap("cyclic", 1, 0, 0, checked_values(values, "bitmap"), "bitmap")


def hash_bitmap(
    n: int = 1, owner: int = 0, *, partition: str = "hash", seed: int = 0, values: str = "float32"
) -> Bitmap:
    """Make the codec of one owner's rows with one bit for each row that it owns; see ``Bitmap``."""
    if not 0 <= owner < n:
        raise UserError(f"hash_bitmap: owner must be in 0..{n - 1}, got {owner}")
    chosen = checked_partition(partition, "hash_bitmap")
    return Bitmap(chosen, n, owner, seed, checked_values(values, "hash_bitmap"), "hash-bitmap")
