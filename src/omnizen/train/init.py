"""How a run begins: ``omnizen.init``."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from omnizen.errors import UserError
from omnizen.measure.texts import gather_texts
from omnizen.protocols import Comm
from omnizen.train.checks import check_seconds
from omnizen.train.record import lab_facts
from omnizen.train.run import Run


def init(*, run_dir: str | os.PathLike[str] | None = None, timeout_s: float = 60.0, seed: int = 0) -> Run:
    """Join the run that torchrun (or any launcher that sets its variables) started, or begin one of a single rank.

    The default process group is initialised if it is not yet; Omnizen's own groups are made beside it: gloo, and
    nccl for gradients when every rank has a GPU to itself.

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
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        from omnizen.comm.threads import ThreadWorld

        alone = ThreadWorld(1, timeout_s).comm(0)
        beside = alone.sub([0], "control")
        assert beside is not None
        return Run(alone, beside, seed=seed, run_dir=run_dir)
    from datetime import timedelta

    from omnizen.comm.meter import Metered
    from omnizen.comm.paced import Paced, PacedLink
    from omnizen.comm.torch_pg import from_default

    made = not dist.is_initialized()
    if made:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
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
