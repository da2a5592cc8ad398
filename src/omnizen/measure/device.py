"""What one rank's device can do: cores that are really there, memory, merging and copying rates."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from omnizen.codecs.index.golomb import golomb
from omnizen.codecs.ownership import Ownership
from omnizen.codecs.values.exponent_pack import exponent_pack
from omnizen.codecs.values.qsgd import qsgd
from omnizen.kernels.bits import pack_bits, unpack_bits
from omnizen.kernels.merge import merge
from omnizen.measure.around import lab_facts
from omnizen.measure.facts import DeviceFacts
from omnizen.measure.texts import gather_texts
from omnizen.protocols import Codec, Comm
from omnizen.selectors.top_k import top_k
from omnizen.types import Dense, Payload, Sparse, Step

WIDTH = 200
ROWS = 4_000
PARTS = 4
ROWS_NARROW = 50_000
ROWS_CODED = 200_000
ELEMENTS = 2**20
COPY_BYTES = 16 * 2**20
BITS = 2**18
"""Rows of a measured bitmap, one in ``PARTS`` of them there."""


def measure_device(
    rank: int, device: torch.device | str = "cpu", *, repeats: int = 5, cgroup: Path = Path("/sys/fs/cgroup")
) -> DeviceFacts:
    """Measure the device of this rank; takes about a tenth of a second.

    Args:
        rank: whose device it is.
        device: where the rank's model lies.
        repeats: timings of each rate; the median counts.
        cgroup: where the kernel shows control groups.
    """
    device = torch.device(device)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, memory = properties.name, properties.total_memory
    else:
        name, memory = processor_name(), available_memory_bytes(cgroup)
    wide_bytes = PARTS * ROWS * (WIDTH * 4 + 8)
    places, values = golomb(), exponent_pack()
    row_part_s, row_s = _coding_s(places, lambda rows: _rows_of(rows, device), device, repeats)
    value_part_s, value_s = _coding_s(values, lambda rows: _dense_of(rows, device), device, repeats)
    return DeviceFacts(
        rank=rank,
        host=socket.gethostname(),
        device=str(device),
        name=name,
        cores=available_cores(cgroup),
        memory_bytes=memory,
        merge_bytes_per_s=wide_bytes / _seconds(_merge_of(PARTS, ROWS, WIDTH, device), device, repeats),
        merge_rows_per_s=PARTS * ROWS_NARROW / _seconds(_merge_of(PARTS, ROWS_NARROW, 1, device), device, repeats),
        copy_bytes_per_s=COPY_BYTES / _seconds(_add_of(COPY_BYTES, device), device, repeats),
        bits_per_s=BITS / _seconds(_read_bits_of(BITS, device), device, repeats),
        locate_rows_per_s=ROWS_NARROW / _seconds(_locate_of(ROWS_NARROW, device), device, repeats),
        code_rows_per_s=1 / row_s,
        code_part_s=row_part_s,
        code_values_per_s=1 / value_s,
        code_values_part_s=value_part_s,
        select_elements_per_s=ELEMENTS / _seconds(_select_of(ELEMENTS, device), device, repeats),
        quantise_elements_per_s=1 / _coding_s(qsgd(), lambda rows: _dense_of(rows, device), device, repeats)[1],
    )


def measure_devices(comm: Comm, *, repeats: int = 5) -> list[DeviceFacts]:
    """Measure every rank's device, all at the same time as in training (collective).

    Returns:
        Facts in rank order, equal on all ranks.
    """
    comm.barrier()
    mine = measure_device(comm.rank, comm.device, repeats=repeats)
    return [DeviceFacts.model_validate_json(text) for text in gather_texts(comm, mine.model_dump_json())]


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the cores that this process may use: its affinity, or a cgroup's or lab's quota where that is less."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    in_lab = lab_facts().get("cores")  # network namespaces hide control groups
    return min([float(allowed), *_quotas(cgroup), *([float(in_lab)] if in_lab else [])])


def _quotas(cgroup: Path) -> list[float]:
    quotas = []
    for folder in _own_groups(cgroup, "cpu"):
        if (text := _read(folder / "cpu.max")) and not text.startswith("max"):  # version 2: "quota period"
            quota, period = text.split()
            quotas.append(int(quota) / int(period))
        quota_us, period_us = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota_us and period_us and int(quota_us) > 0:
            quotas.append(int(quota_us) / int(period_us))
    return quotas


def available_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that this process may use: the machine's, or a cgroup's limit where that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _own_groups(cgroup, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text and text != "max":
                limits.append(int(text))
    return min(limits)


def _own_groups(cgroup: Path, controller: str) -> list[Path]:
    """Return this process's control group and all above it, in both versions' layouts."""
    folders = []
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            for root in (cgroup, cgroup / controller, cgroup / controllers):
                leaf = root / path.lstrip("/")
                folders += [f for f in (leaf, *leaf.parents) if f == root or root in f.parents]
    return list(dict.fromkeys([*folders, cgroup, cgroup / controller]))


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.is_file() else None


def processor_name() -> str:
    """Return the processor's name as the system gives it."""
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _merge_of(parts: int, rows: int, width: int, device: torch.device) -> Callable[[], object]:
    """Return a call that merges ``parts`` sets of rows, about a third of them shared, as a reducer does."""
    generator = torch.Generator().manual_seed(0)
    indices = [torch.randperm(3 * rows, generator=generator)[:rows].sort().values.to(device) for _ in range(parts)]
    values = [torch.ones(rows, width, device=device) for _ in range(parts)]
    return lambda: merge(indices, values)


def _add_of(nbytes: int, device: torch.device) -> Callable[[], object]:
    a, b = (torch.ones(nbytes // 4, device=device) for _ in range(2))
    return lambda: a.add_(b)


def _read_bits_of(bits: int, device: torch.device) -> Callable[[], object]:
    packed = pack_bits(torch.arange(0, bits, PARTS, device=device), bits)
    return lambda: unpack_bits(packed)


def _locate_of(rows: int, device: torch.device) -> Callable[[], object]:
    """Return a call that finds rows among those that an owner has by hash, a third of which are there."""
    owned = Ownership("hash", 3 * rows * PARTS, PARTS)
    mine = owned.rows_at(torch.arange(0, 3 * rows, 3, device=device).clamp(max=owned.num_owned(0) - 1), 0)
    return lambda: owned.position(mine, 0)


def _rows_of(rows: int, device: torch.device) -> Sparse:
    """Return elements, one in ``PARTS * PARTS`` of those that could be there."""
    generator = torch.Generator().manual_seed(0)
    possible = PARTS * PARTS * rows
    places = torch.randperm(possible, generator=generator)[:rows].sort().values
    return Sparse(places.to(device), torch.randn(rows, 1, generator=generator).to(device), possible)


def _dense_of(elements: int, device: torch.device) -> Dense:
    generator = torch.Generator().manual_seed(0)
    return Dense(torch.randn(elements, generator=generator).to(device))


def _select_of(elements: int, device: torch.device) -> Callable[[], object]:
    values, selector = _dense_of(elements, device).values, top_k()
    return lambda: selector.select(values, Step(0))


def _coding_s(
    codec: Codec, of: Callable[[int], Payload], device: torch.device, repeats: int
) -> tuple[float, float]:
    """Return the seconds of coding or reading a message of one row, and of each row in a long one.

    The long one is taken whole, because a difference of two disturbed times may be anything.
    """

    def both_s(rows: int) -> float:
        given = of(rows)
        return _seconds(lambda: codec.decode(codec.encode(given, Step(0))), device, repeats) / 2

    return both_s(1), both_s(ROWS_CODED) / ROWS_CODED


def _seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    def timed() -> float:
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    timed()  # the first call pays for memory and set-up
    return max(median(timed() for _ in range(repeats)), 1e-9)
