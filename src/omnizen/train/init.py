"""How a run begins: ``omnizen.init``."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch

from omnizen.errors import UserError
from omnizen.measure.around import lab_facts
from omnizen.measure.texts import gather_texts
from omnizen.protocols import Comm
from omnizen.train.checks import check_seconds
from omnizen.train.last_words import speak_briefly
from omnizen.train.run import Run


def init(*, run_dir: str | os.PathLike[str] | None = None, timeout_s: float = 60.0, seed: int = 0) -> Run:
    """Join the run that torchrun (or any launcher that sets its variables) started, or begin one of a single rank.

    The default process group is initialised if it is not yet; Omnizen's own groups are made beside it: gloo, and
    nccl for gradients when every rank has a GPU to itself. With more than one rank, a ``UserError`` that nobody
    catches ends a rank with one line instead of a traceback (``OMNIZEN_TRACEBACK=1`` keeps tracebacks).

    Args:
        run_dir: where facts, plan and events are written.
        timeout_s: limit of each wait for another rank.
        seed: equal on all ranks; order of data and shared random choices. The global generators stay untouched.

    Raises:
        UserError: a time limit that is not positive, a seed that is no whole number, a run_dir that cannot be made.

    Example:
        >>> run = init(); run.rank, run.size  # doctest: +SKIP
        (0, 1)
    """
    import torch.distributed as dist

    _check(run_dir, timeout_s, seed)
    if not dist.is_initialized() and _world_size() == 1:
        from omnizen.comm.threads import ThreadWorld

        alone = ThreadWorld(1, timeout_s).comm(0)
        beside = alone.sub([0], "control")
        assert beside is not None
        return Run(alone, beside, seed=seed, run_dir=run_dir)
    speak_briefly()
    from omnizen.comm.meter import Metered
    from omnizen.comm.paced import Paced, PacedLink
    from omnizen.comm.torch_pg import from_default

    made = not dist.is_initialized()
    if made:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        _join(backend, timedelta(seconds=timeout_s))
    control: Comm = from_default(timeout_s, device="cpu", name="control")
    gradients: Comm = from_default(timeout_s, device=_gradient_device(control), name="gradients")
    lab = lab_facts()
    if lab.get("network", "").startswith("loopback"):
        link = PacedLink(lab["rate_bytes_per_s"])
        gradients, control = Paced(gradients, link), Paced(control, link)
    return Run(
        Metered(gradients),
        control,
        seed=seed,
        run_dir=run_dir,
        on_close=dist.destroy_process_group if made else None,
    )


def _world_size() -> int:
    """Return the number of ranks that the launcher wants, once all that is needed to meet them is there."""
    found = {name: os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")}
    size = _number("WORLD_SIZE", found["WORLD_SIZE"] or "1", 1)
    if size == 1:
        return size
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise UserError(
            f"WORLD_SIZE is {size}, but {', '.join(missing)} is not set; start by torchrun, which sets all, or "
            "unset WORLD_SIZE for a run of one rank"
        )
    _number("RANK", found["RANK"], 0, size - 1)
    _number("MASTER_PORT", found["MASTER_PORT"], 1, 65_535)
    return size


def _number(name: str, text: str, least: int, most: int = 2**31 - 1) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        limits = f"from {least} up" if most == 2**31 - 1 else f"from {least} to {most}"
        raise UserError(f"{name}: a whole number {limits}, got {text!r}; torchrun sets it")
    return number


def _join(backend: str, limit: timedelta) -> None:
    """Meet the other ranks.

    Raises:
        UserError: they did not all come within the time limit, or the meeting point cannot be reached.
    """
    import torch.distributed as dist

    began_s = time.monotonic()
    try:
        dist.init_process_group(backend, timeout=limit)
    except (dist.DistError, ValueError) as error:
        rank, size, address, port = (os.environ[n] for n in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(
            f"rank {rank} could not meet the other {int(size) - 1} of {size} ranks at {address}, port {port}, "
            f"after {time.monotonic() - began_s:.1f} s (limit {limit.total_seconds():g} s): {reason}"
        ) from error


def _gradient_device(control: Comm) -> torch.device:
    """Return where gradients travel from: each rank's own GPU when all ranks have one, else the CPU.

    Not measured on a GPU.
    """
    own = "none"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        own = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    everyone = gather_texts(control, own)
    distinct = "none" not in everyone and len(set(everyone)) == len(everyone)
    return torch.device("cuda", torch.cuda.current_device()) if distinct else torch.device("cpu")


def _check(run_dir: str | os.PathLike[str] | None, timeout_s: float, seed: int) -> None:
    check_seconds(timeout_s)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UserError(f"seed: a whole number, got {seed!r}")
    if run_dir is not None:
        try:
            Path(run_dir).mkdir(parents=True, exist_ok=True)
        except (OSError, TypeError) as error:
            raise UserError(f"run_dir: {run_dir!r} cannot be made ({error}); give a folder to write to") from error


__all__ = ["init"]
