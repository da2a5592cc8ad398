"""TensorBoard scalars while a run goes."""

from __future__ import annotations

from pathlib import Path

from omnizen.events import StepEvent
from omnizen.spans import CATEGORIES


class ScalarWriter:
    """Turns step events into TensorBoard scalars; one rank (rank 0) is enough.

    Scalars: ``loss`` and what else was logged by its name, ``step/seconds``, ``step/<part>_seconds``,
    ``step/samples_per_s`` of this rank, ``traffic/received_bytes`` and ``traffic/sent_bytes``.

    Args:
        folder: where TensorBoard looks, ``<run_dir>/tb``.
        flush_s: seconds after which what was observed is on disk at the latest.

    Example:
        >>> scalars = ScalarWriter("run/tb")  # doctest: +SKIP
        >>> scalars.observe(StepEvent(step=0, start_s=0.0, step_s=0.3, loss=6.2))  # doctest: +SKIP
        >>> scalars.close()  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path, *, flush_s: int = 5) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), flush_secs=flush_s)

    def observe(self, step: StepEvent) -> None:
        """Add the scalars of one step; its clock time is now."""
        values: dict[str, float] = {"step/seconds": step.step_s, "traffic/received_bytes": step.rx_bytes}
        values["traffic/sent_bytes"] = step.tx_bytes
        for part in CATEGORIES:
            values[f"step/{part}_seconds"] = getattr(step, f"{part}_s")
        if step.loss is not None:
            values["loss"] = step.loss
        values.update(step.logged)
        if step.samples and step.step_s:
            values["step/samples_per_s"] = step.samples / step.step_s
        for name, value in values.items():
            self._writer.add_scalar(name, value, step.step)

    def close(self) -> None:
        """Write what is left; calling it twice is harmless."""
        self._writer.close()
