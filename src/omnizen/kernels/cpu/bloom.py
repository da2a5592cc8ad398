"""Bloom filters, a row at a time: most rows fail at their first or second bit."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from omnizen.kernels.bloom import NEXT
from omnizen.kernels.cpu.owner import mix32
from omnizen.kernels.cpu.words import integers

_MASK, _NEXT = np.uint64(0xFFFFFFFF), np.uint64(NEXT)
_1, _3, _7, _32 = np.uint64(1), np.uint64(3), np.uint64(7), np.uint64(32)


@njit(cache=True, nogil=True)
def _places(rows, num_bits, seed, out):  # type: ignore[no-untyped-def]
    salt = mix32(seed)
    for i in range(rows.size):
        hashed = mix32(np.uint64(rows[i]) ^ salt)
        for j in range(out.shape[1]):
            out[i, j] = np.int64((hashed * num_bits) >> _32)
            hashed = mix32((hashed + _NEXT) & _MASK)


@njit(cache=True, nogil=True)
def _query(packed, num_bits, hashes, seed, start, stop, out):  # type: ignore[no-untyped-def]
    found, salt = 0, mix32(seed)
    for row in range(start, stop):
        hashed = mix32(np.uint64(row) ^ salt)
        there = True
        for _ in range(hashes):
            bit = (hashed * num_bits) >> _32
            if not (np.uint64(packed[bit >> _3]) >> (bit & _7)) & _1:
                there = False
                break
            hashed = mix32((hashed + _NEXT) & _MASK)
        if there:
            out[found] = row
            found += 1
    return found


@njit(cache=True, nogil=True)
def _cover(rank, by_rank, starts, members, sets, count, chosen):  # type: ignore[no-untyped-def]
    left = count
    for s in range(sets.size):
        if left == 0:
            return
        bit, best, covered = sets[s], -1, False
        for m in range(starts[bit], starts[bit + 1]):
            row = members[m]
            if chosen[row]:
                covered = True
                break
            if best < 0 or rank[row] < rank[best]:
                best = row
        if not covered:
            chosen[best] = True
            left -= 1
    for r in range(by_rank.size):
        if left == 0:
            return
        if not chosen[by_rank[r]]:
            chosen[by_rank[r]] = True
            left -= 1


def bloom_places(rows: Tensor, num_bits: int, hashes: int, seed: int) -> Tensor:
    """Twin of ``kernels.bloom.bloom_places``."""
    out = np.empty((rows.numel(), hashes), np.int64)
    _places(integers(rows.long()), np.uint64(num_bits), np.uint64(seed & 0xFFFFFFFF), out)
    return torch.from_numpy(out)


def bloom_query(packed: Tensor, num_bits: int, hashes: int, seed: int, num_rows: int) -> Tensor:
    """Twin of ``kernels.bloom.bloom_query``."""
    chunk, found = 2**20, []
    out, bits = np.empty(min(chunk, num_rows), np.int64), integers(packed)
    for start in range(0, num_rows, chunk):
        stop = min(start + chunk, num_rows)
        count = _query(bits, np.uint64(num_bits), hashes, np.uint64(seed & 0xFFFFFFFF), start, stop, out)
        found.append(torch.from_numpy(out[:count].copy()))
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)


def bloom_cover(places: Tensor, rank: Tensor, count: int) -> Tensor:
    """Twin of ``kernels.bloom.bloom_cover``."""
    flat = places.reshape(-1)
    members = torch.argsort(flat, stable=True) // max(1, places.shape[1])
    sizes = torch.bincount(flat)
    starts = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    sets = torch.argsort(sizes, stable=True)
    sets = sets[sizes[sets] > 0]
    chosen = np.zeros(places.shape[0], np.bool_)
    by_rank = integers(torch.argsort(rank))
    _cover(integers(rank), by_rank, integers(starts), integers(members), integers(sets), count, chosen)
    return torch.from_numpy(np.flatnonzero(chosen))
