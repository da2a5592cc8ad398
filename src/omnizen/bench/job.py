"""What a benchmark's worker is told and what it answers; both travel as JSON files."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from omnizen.bench.errand import WorkerAnswer
from omnizen.measure.around import lab_facts

METHODS = (
    "ddp",
    "ddp-sparse",
    "ddp-fp16",
    "ddp-powersgd",
    "torchft",
    "omnizen",
    "omnizen-lazy",
    "omnizen-lazy-bf16",
    "omnizen-groups-2",
    "omnizen-async",
    "omnizen-powersgd",
)
SUMMARIES = {
    "ddp": "stock DistributedDataParallel, dense gradients",
    "ddp-sparse": "stock DistributedDataParallel, embeddings with sparse=True",
    "ddp-fp16": "dense gradients through fp16_compress_hook",
    "ddp-powersgd": "dense gradients through powerSGD_hook, rank 4 from step 2",
    "torchft": "torchft's DistributedDataParallel, one replica group a worker",
    "omnizen": "oz.init and run.prepare, plan made from measured facts",
    "omnizen-lazy": 'the same with plan="lazy": owners update rows and send those that the next batch reads',
    "omnizen-lazy-bf16": "the same, and dense gradients in bfloat16 with error feedback",
    "omnizen-groups-2": "two compute groups, synchronous inside, asynchronous between",
    "omnizen-async": "each worker a compute group of its own",
    "omnizen-powersgd": 'the same with plan="powersgd": rank 4 from step 0, error feedback, rows of tables too',
}


class Job(BaseModel):
    """One method on one case, for all workers alike.

    Args:
        case_options: passed on to the case (``{"text": FOLDER}`` for a language model on other files).
        warmup_steps: steps before the timed ones; a method may take more (Omnizen until its plan is in force).
        steps: timed steps at most.
        min_steps: timed steps at least, even when they take longer than the budget.
        budget_s: timed steps end about here.
        limit_s: the worker ends itself, as failed, when the whole job takes longer.
        plan: for Omnizen: ``auto``, a plan file or a scheme's name.
        out: folder of the workers' answers.
        run_dir: folder of the run's events.
        run_id: equal on all workers, so that a report knows that their events belong together.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    case: str
    method: str
    batch: int
    case_options: dict[str, Any] = Field(default_factory=dict)
    warmup_steps: int = 2
    steps: int = 20
    min_steps: int = 3
    budget_s: float = 30.0
    limit_s: float = 600.0
    seed: int = 0
    plan: str = "auto"
    out: Path
    run_dir: Path
    run_id: str = Field(default_factory=lambda: uuid.uuid4().hex[:12])

    def save(self) -> Path:
        """Write the job into its own folder, without answers to an earlier one; returns the workers' file."""
        self.out.mkdir(parents=True, exist_ok=True)
        for old in self.out.glob("rank*"):
            old.unlink()
        path = self.out / "job.json"
        path.write_text(self.model_dump_json(indent=1), encoding="utf-8")
        return path


class Network(BaseModel):
    """The links between the workers, as whoever started them says.

    Args:
        rate_bytes_per_s: rate of each link as shaped, after dilation; None for links as they are.
        dilation: factor by which links were slowed to keep compute and wire in proportion.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    network: str = "as is"
    rate_bytes_per_s: float | None = None
    dilation: float = 1.0

    @property
    def shaped(self) -> bool:
        """True in namespaces, where the interface's own counters hold one worker's bytes."""
        return self.network == "namespaces, shaped links"

    @property
    def paced(self) -> bool:
        """True where every worker must pace its own sending."""
        return self.network == "loopback, paced in software"

    @classmethod
    def from_environment(cls) -> Network:
        """Read what the lab, or the demo's software mode, left in the environment."""
        return cls(**lab_facts())


class Answer(WorkerAnswer):
    """What one worker measured.

    Args:
        step_s: seconds of each timed step.
        losses: this rank's loss of every step from the first, warm-up included.
        rx_bytes_per_step: received over the timed steps, divided by their number.
        bytes_source: ``interface counters``, ``meter`` (payload only) or ``counted from tensors``.
        items_per_step: tokens or samples that this rank trained on in one step.
        setup_s: from the process group to the first step (DDP's broadcast, Omnizen's digests).
        compute_s: seconds of forward and backward alone, all ranks at work, measured before the first step.
    """

    size: int
    method: str
    step_s: list[float] = Field(default_factory=list)
    losses: list[float] = Field(default_factory=list)
    warmup_steps: int = 0
    rx_bytes_per_step: float = 0.0
    tx_bytes_per_step: float = 0.0
    bytes_source: str = ""
    items_per_step: int = 0
    setup_s: float = 0.0
    compute_s: float = 0.0
    predicted_step_s: float | None = None
    schemes: dict[str, str] = Field(default_factory=dict)
    network: Network = Field(default_factory=Network)


def answers(folder: Path) -> list[Answer]:
    """Read what the workers answered, in rank order."""
    found = [Answer.model_validate_json(p.read_text(encoding="utf-8")) for p in folder.glob("rank*.json")]
    return sorted(found, key=lambda a: a.rank)
