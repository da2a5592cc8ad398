"""Whole numbers on a scale that all ranks share: they are added up on the wire without being unpacked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.errors import UserError, nearest
from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.kernels.merge import sum_dtype
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import Memoryless
from omnizen.reducers.contribution import checked
from omnizen.reducers.feedback import feedback
from omnizen.reducers.named import Named, named
from omnizen.reducers.segments import slots
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Reduced, Sparsity, State, Step, Traffic, hash_text

WIDTHS = (4, 8, 16)
"""Bits of a field that there are."""
LANE_BYTES = 4
ROUNDINGS = ("nearest", "random")


@dataclass(frozen=True, slots=True)
class SharedScale(Memoryless):
    """Round each tensor to ``2 L + 1`` levels of a common scale, all-reduce the whole numbers, scale the sum back.

    Ranks first agree on the largest magnitude of each tensor (a few bytes from everybody to everybody). A sum of n
    numbers must fit into its field: ``L = floor((2^b - 1) / 2n)`` levels either side of zero, and a wider field
    where that would be none, so no number of ranks overflows. Saves 3/4 of float32 with 8 bits; costs precision,
    more of it the more ranks there are (8 bits: 63 levels for 2 ranks, 15 for 8, 1 for 64), which error feedback
    sends later.

    A tensor with NaN or infinity on any rank comes back as NaN on all of them: whole numbers have no NaN.

    Args:
        bits: of a field at least, 4, 8 or 16.
        levels: either side of zero; as many as fit if left out. 1 is ternary.
        rounding: "nearest", or "random": up or down at random, so that the error is zero in the mean.
        clip: magnitudes beyond this many standard deviations of a rank's tensor are cut, if given.

    Reference: Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression", NSDI
    2024 (the shared scale); Wen et al., "TernGrad", NeurIPS 2017 (ternary, clipping, scale sharing).
    """

    bits: int = 8
    levels: int | None = None
    rounding: str = "nearest"
    clip: float | None = None
    name: ClassVar[str] = "shared-scale"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Dense,)
    agrees: ClassVar[bool] = True
    conserves: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    def field(self, size: int) -> tuple[int, int]:
        """Return bits of a field and levels either side of zero for this many ranks.

        Raises:
            UserError: for more ranks than the widest field can add up.

        Example:
            >>> [SharedScale().field(n) for n in (1, 2, 8, 64, 200)]
            [(8, 127), (8, 63), (8, 15), (8, 1), (16, 163)]
            >>> [SharedScale(bits=4, levels=1).field(n) for n in (7, 8, 128)]
            [(4, 1), (8, 1), (16, 1)]
        """
        for bits in WIDTHS:
            most = (2**bits - 1) // (2 * size)
            if bits >= self.bits and most >= (self.levels or 1):
                return bits, self.levels or most
        raise UserError(f"shared-scale: {size} ranks' {self.levels or 1} levels do not add up in {WIDTHS[-1]} bits")

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to agree on the scales."""
        checked(x, self.takes, self.name)
        assert isinstance(x, Dense)
        bits, levels = self.field(comm.size)
        lengths = [slot.numel for slot in slots(x)]
        with span("encode", step.name):
            flat = x.values.detach().reshape(-1).to(sum_dtype(x.values.dtype))
            flat = flat[: sum(lengths)]
            parts = [self._clipped(part) for part in flat.split(lengths)]
            largest = [part.abs().amax() if part.numel() else part.new_zeros(()) for part in parts]
        agreed = comm.all_gather([torch.stack(largest)])

        def finish() -> Reduced:
            scales = torch.stack([theirs for (theirs,) in agreed.wait()]).amax(0)
            with span("encode", step.name):
                each = scales.repeat_interleave(torch.tensor(lengths, device=flat.device))
                known = torch.isfinite(each) & (each > 0)
                numbers = torch.where(known, torch.cat(parts) / each * levels, 0.0)
                numbers = self._rounded(numbers, comm.rank, step).clamp_(-levels, levels)
                lanes = to_lanes(numbers.int() + levels, bits)
            added = comm.all_reduce(lanes).wait()
            with span("decode", step.name):
                total = from_lanes(added, bits, flat.numel()).sub_(levels * comm.size)
                unit = torch.where(torch.isfinite(each), each / levels, float("nan"))
                value = total * unit / comm.size
            return Reduced(_like(value, x), _like(numbers * unit, x), state)

        return Later(finish)

    def _clipped(self, part: Tensor) -> Tensor:
        if self.clip is None or part.numel() < 2:
            return part
        bound = self.clip * part.std()
        # NaN and infinity make the bound NaN, and must not be cut away.
        return torch.where(part.abs() > bound, torch.copysign(bound, part), part)

    def _rounded(self, numbers: Tensor, rank: int, step: Step) -> Tensor:
        if self.rounding == "nearest":
            return numbers.round()
        own = torch.Generator().manual_seed(hash_text(f"{step.shared_seed}/{step.n}/{step.name}/{rank}"))
        return (numbers + torch.rand(numbers.shape, generator=own).to(numbers)).floor_()

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the agreement on one scale and the ring of whole numbers."""
        bits, _ = self.field(size)
        scale_bytes = (size - 1) * max(4, pattern.itemsize)
        lanes = -(-pattern.num_rows * pattern.width * bits // 32)
        return wire_cost.scheduled(scale_bytes, scale_bytes, 1, size) + wire_cost.all_reduce(
            LANE_BYTES * lanes, size
        )


def to_lanes(numbers: Tensor, bits: int) -> Tensor:
    """Return fields in 32-bit lanes: lanes that are added add up field by field, as long as no sum needs more bits.

    Lanes are signed, as every backend adds those; the topmost field may use the sign.

    Example:
        >>> from_lanes(to_lanes(torch.tensor([1, 100, 3]), 8) * 2, 8, 3)
        tensor([  2, 200,   6])
    """
    fields = pack_fields(numbers, bits)
    return torch.nn.functional.pad(fields, (0, -fields.numel() % LANE_BYTES)).view(torch.int32)


def from_lanes(lanes: Tensor, bits: int, length: int) -> Tensor:
    """Return the fields of packed or added lanes, ``[length]`` int64."""
    return unpack_fields(lanes.view(torch.uint8)[: -(-length * bits // 8)], bits, length)


def _like(flat: Tensor, x: Dense) -> Dense:
    flat = flat.to(x.values.dtype)
    behind = x.values.numel() - flat.numel()
    whole = torch.cat([flat, flat.new_zeros(behind)]) if behind else flat
    return Dense(whole.view(x.values.shape), x.layout)


def shared_scale(
    bits: int = 8, levels: int | None = None, rounding: str = "nearest", clip: float | None = None
) -> SharedScale:
    """Make the average of whole numbers on a shared scale; see ``SharedScale``.

    Raises:
        UserError: for a width of fields, a number of levels, a rounding or a clip that there is not.
    """
    if bits not in WIDTHS:
        raise UserError(f"shared-scale: bits: {nearest(bits, WIDTHS)}")
    if levels is not None and (isinstance(levels, bool) or not isinstance(levels, int) or levels < 1):
        raise UserError(f"shared-scale: levels must be a whole number of 1 or more, got {levels!r}")
    if rounding not in ROUNDINGS:
        raise UserError(f"shared-scale: rounding: {nearest(rounding, ROUNDINGS)}")
    if clip is not None and not 0 < clip < float("inf"):
        raise UserError(f"shared-scale: clip is a number of standard deviations above 0, got {clip!r}")
    return SharedScale(bits, levels, rounding, clip)


def shared_scale_scheme(bits: int = 8, memory: bool = True) -> Named:
    """Shared-scale integers, with error feedback unless ``memory`` is False; then rounded at random."""
    made = shared_scale(bits) if memory else shared_scale(bits, rounding="random")
    return named(feedback(made) if memory else made, "shared-scale")
