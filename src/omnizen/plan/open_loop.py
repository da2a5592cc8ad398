"""Shares of a batch before anything has been trained: from measured rates, else from cores.

On one device or many, time is work over rate, so a split in proportion to the rates lets all end together: a device
is a black box with one number (Hadjis et al., "Omnivore", arXiv:1606.04487).
"""

from __future__ import annotations

import math

from omnizen.errors import UserError
from omnizen.measure.facts import DeviceFacts, Facts

UNLIKE = 1.1
"""Rates of which one is so many times another are worth a word."""


def shares_from(facts: Facts, *, batch: int | None = None) -> tuple[float, ...]:
    """Return each rank's share of a global batch, in proportion to what it gets done.

    Args:
        facts: of ``omnizen measure``, whose rates of the user's own step count; where a rank has none, cores count
            for all, which says something among processors only.
        batch: samples of a rank's step at which rates are compared; unless given, the most that all measured.

    Raises:
        UserError: a rank's device was not measured, or ranks on GPUs without rates.

    Example:
        >>> from omnizen.measure.facts import Facts
        >>> shares_from(Facts.load("facts.toml"))  # doctest: +SKIP
        (0.3, 0.3, 0.3, 0.1)
    """
    devices = {device.rank: device for device in facts.devices}
    missing = [rank for rank in range(facts.world_size) if rank not in devices]
    if missing:
        raise UserError(f"the facts say nothing about the device of rank {missing[0]}; run `omnizen measure` again")
    ranks = [devices[rank] for rank in range(facts.world_size)]
    rates = _rates(ranks, batch)
    if rates is None:
        graphic = [device for device in ranks if not device.device.startswith("cpu")]
        if graphic:
            raise UserError(
                f"rank {graphic[0].rank} computes on {graphic[0].device} and the facts hold no samples_per_s of "
                "all ranks at one batch size, so cores would have to tell, which they cannot; run "
                "`omnizen measure` with your model"
            )
        rates = [device.cores for device in ranks]
    total = math.fsum(rates)
    return tuple(rate / total for rate in rates)


def advice(facts: Facts) -> list[str]:
    """Return a line on what balanced batches would bring; none where no rates were measured or all are alike.

    Example:
        >>> advice(Facts(torch_version="2.13.0", world_size=1))
        []
    """
    rates = _rates(facts.devices, None) if facts.devices else None
    if rates is None or len(rates) < facts.world_size or max(rates) < UNLIKE * min(rates):
        return []
    shares = ", ".join(f"{share:.3g}" for share in shares_from(facts))
    less = len(rates) * min(rates) / math.fsum(rates)
    return [
        f"with even batches all wait for the slowest worker; shares {shares} (balance='auto' in run.prepare) would "
        f"take {less:.0%} of the compute time"
    ]


def _rates(ranks: list[DeviceFacts], batch: int | None) -> list[float] | None:
    """Return samples a second of all ranks at one batch size, None where there is none that all have measured."""
    common = set.intersection(*({int(size) for size in device.samples_per_s} for device in ranks))
    if not common:
        return None
    size = max(common) if batch is None else min(common, key=lambda measured: (abs(measured - batch), measured))
    return [device.samples_per_s[str(size)] for device in ranks]
