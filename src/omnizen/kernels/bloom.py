"""Bloom filters of row numbers: a row's bits, rows that a filter lets through, and a choice among them."""

from __future__ import annotations

import torch
from torch import Tensor

from omnizen.kernels.owner import MASK32, mix32
from omnizen.kernels.spec import Kernel

NEXT = 0x9E3779B9
"""Is added before a hash is mixed into the next one."""
CHUNK_ROWS = 2**20


def _bloom_places(rows: Tensor, num_bits: int, hashes: int, seed: int) -> Tensor:
    hashed = mix32(rows.long() ^ mix32(torch.tensor(seed & MASK32, device=rows.device)))
    places = []
    for _ in range(hashes):
        places.append((hashed * num_bits) >> 32)
        hashed = mix32((hashed + NEXT) & MASK32)
    return torch.stack(places, 1) if places else rows.new_empty(rows.numel(), 0, dtype=torch.int64)


def _bloom_query(packed: Tensor, num_bits: int, hashes: int, seed: int, num_rows: int) -> Tensor:
    found = []
    for start in range(0, num_rows, CHUNK_ROWS):
        rows = torch.arange(start, min(start + CHUNK_ROWS, num_rows), device=packed.device)
        places = _bloom_places(rows, num_bits, hashes, seed)
        found.append(rows[((packed[places >> 3] >> (places & 7)) & 1).bool().all(1)])
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=packed.device)


def _bloom_cover(places: Tensor, rank: Tensor, count: int) -> Tensor:
    members: dict[int, list[int]] = {}
    for row, bits in enumerate(places.tolist()):
        for bit in bits:
            members.setdefault(bit, []).append(row)
    ranks = rank.tolist()
    chosen: set[int] = set()
    for _, bit in sorted((len(rows), bit) for bit, rows in members.items()):
        if len(chosen) < count and not chosen.intersection(members[bit]):
            chosen.add(min(members[bit], key=ranks.__getitem__))
    rest = sorted(set(range(len(ranks))) - chosen, key=ranks.__getitem__)
    chosen.update(rest[: count - len(chosen)])
    return torch.tensor(sorted(chosen), dtype=torch.int64, device=places.device)


bloom_places: Kernel[[Tensor, int, int, int], Tensor] = Kernel(
    "bloom_places", _bloom_places, cpu="omnizen.kernels.cpu.bloom:bloom_places"
)
"""``bloom_places(rows [k] < 2^32, num_bits < 2^31, hashes, seed) -> [k, hashes] int64``: the bits of each row.

Each hash is mixed from the one before: sums of two hashes, as is common, let too much through in small filters.
"""

bloom_query: Kernel[[Tensor, int, int, int, int], Tensor] = Kernel(
    "bloom_query", _bloom_query, cpu="omnizen.kernels.cpu.bloom:bloom_query"
)
"""``bloom_query(packed [b] uint8, num_bits, hashes, seed, num_rows) -> [p] int64``: rows with all bits set."""

bloom_cover: Kernel[[Tensor, Tensor, int], Tensor] = Kernel(
    "bloom_cover", _bloom_cover, cpu="omnizen.kernels.cpu.bloom:bloom_cover"
)
"""``bloom_cover(places [p, hashes], rank [p], count) -> [count] int64``: choose ``count <= p`` rows, ascending.

Every set bit was set by a row that is really there, so each bit's conflict set (the rows that share the bit) holds
one. From the smallest set on, a set that has no chosen row yet gives its row of the lowest rank; what is missing at
the end follows by rank.
"""
