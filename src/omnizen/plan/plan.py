"""The plan: who synchronises what and how, what that is expected to cost, and what was rejected and why."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from omnizen.errors import LISTS_METHODS, UserError, nearest
from omnizen.measure.facts import Facts, Kind
from omnizen.measure.tomlfile import PLAN, Record, TomlFile
from omnizen.plan.lazy import LAZY

PLAN_VERSION = 1
Amount = Annotated[float, Field(ge=0)]
"""Seconds or bytes."""
StrategyName = Literal["sync", "groups", "local"]
DDP_BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel's default; used where nothing was measured that says better."""


def check_scheme(scheme: str) -> str:
    """Return the catalogue's name of a scheme, or "lazy".

    Raises:
        UserError: when there is no such scheme; names the nearest one.
    """
    from omnizen.catalog import REDUCERS, full_name
    from omnizen.catalog_rows import SHORT

    scheme = full_name(scheme)
    if scheme not in REDUCERS and scheme != LAZY:
        found = nearest(scheme, [*REDUCERS, LAZY], listed_by=LISTS_METHODS, also=SHORT)
        raise UserError(f"there is no such scheme: {found}")
    return scheme


class Rejected(Record):
    """A scheme that was not chosen for a tensor.

    Args:
        predicted_s: seconds that it would take.
        rx_bytes: bytes that the busiest rank would receive.
        reason: why not, in words.
        wire_s: the part of ``predicted_s`` that bytes take on the links; None in plans of an earlier version.
        measured_s: seconds that it took where it was tried.
    """

    scheme: str
    predicted_s: Amount
    rx_bytes: Amount
    reason: str
    wire_s: Amount | None = None
    measured_s: Amount | None = None

    _exists = field_validator("scheme")(check_scheme)


class TensorPlan(Record):
    """How one gradient is synchronised.

    Args:
        predicted_s: seconds of one reduction, nothing overlapping.
        rx_bytes: bytes that the busiest rank receives in it.
        wire_s: the part of ``predicted_s`` that bytes take on the links; None in plans of an earlier version.
        origin: what decided, the cost formulas or a trial on the real links.
        measured_s: seconds that it took where it was tried.
    """

    name: str
    kind: Kind
    scheme: str
    predicted_s: Amount
    rx_bytes: Amount
    wire_s: Amount | None = None
    origin: Literal["formula", "trial"] = "formula"
    measured_s: Amount | None = None
    rejected: list[Rejected] = Field(default_factory=list)

    _exists = field_validator("scheme")(check_scheme)


class Prediction(Record):
    """What one step is expected to take.

    Args:
        step_s: compute, control messages and the part of the communication that nothing hides.
        compute_s: forward and backward; 0 where it was not measured.
        exposed_comm_s: communication and merging that the step waits for.
        comm_s: all communication and merging.
        control_s: the fixed small messages of a step.
        rx_bytes_per_step: bytes that the busiest rank receives.
    """

    step_s: Amount
    compute_s: Amount
    exposed_comm_s: Amount
    comm_s: Amount
    control_s: Amount = 0.0
    rx_bytes_per_step: Amount


class Execution(Record):
    """A strategy as a whole, and what it is expected to give.

    Args:
        strategy: "sync", "groups" (synchronous inside, asynchronous between) or "local" (averages now and then).
        groups: ranks of each group; one group of all unless strategy is "groups".
        batch_shares: samples of each rank in a step; empty when that was not looked at.
        local_steps: of each rank between two averages; empty unless strategy is "local".
        compression: catalogue name of what loses something; empty when nothing is lost.
        momentum: at which its price was measured; None keeps the user's.
        lr: step size at which that was; None where nothing was tuned. Training keeps the user's, and says so.
        update_s: seconds between two updates of the model.
        samples_per_s: of all ranks together.
        price: samples to the same loss over those of plain synchronous training; None when it was not measured.
        relative: time to the same loss over that of plain synchronous training with even shares.
        relative_low: the same at the price's 20th percentile.
        relative_high: at its 80th.
        origin: what the seconds rest on.
        reason: why it was not chosen; empty for the one that was.
    """

    strategy: StrategyName = "sync"
    groups: list[list[int]] = Field(default_factory=list)
    batch_shares: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    local_steps: list[PositiveInt] = Field(default_factory=list)
    compression: str = ""
    momentum: float | None = None
    lr: Annotated[float, Field(gt=0)] | None = None
    update_s: Amount
    samples_per_s: Amount
    price: Amount | None = None
    relative: Amount
    relative_low: Amount
    relative_high: Amount
    origin: Literal["formula", "simulation"] = "formula"
    reason: str = ""

    @property
    def title(self) -> str:
        """Name it in a few words."""
        shares = set(self.batch_shares)
        words = {
            "sync": "synchronous",
            "groups": f"{len(self.groups)} groups",
            "local": f"{sum(self.local_steps) / max(1, len(self.local_steps)):g} local steps",
        }[self.strategy]
        if len(set(self.local_steps)) > 1:
            words += " by speed"
        return (
            words
            + (", uneven shares" if len(shares) > 1 else "")
            + f", {self.compression}" * bool(self.compression)
        )


class Plan(TomlFile):
    """A whole plan, as ``omnizen plan`` writes it and training reads it.

    Args:
        strategy: who shares what, when; "sync" averages gradients of all in every step.
        execution: the strategy in full; None in plans that weighed schemes only.
        alternatives: strategies that were weighed and not chosen, the best first.
        bucket_bytes: dense gradients travel together in buckets that close when they hold so much.
        facts_digest: which facts it rests on.
    """

    kind: ClassVar[str] = PLAN
    version: int = PLAN_VERSION
    world_size: PositiveInt
    model_digest: str = ""
    torch_version: str
    strategy: StrategyName = "sync"
    execution: Execution | None = None
    alternatives: list[Execution] = Field(default_factory=list)
    bucket_bytes: PositiveInt = DDP_BUCKET_BYTES
    tensors: list[TensorPlan] = Field(default_factory=list)
    prediction: Prediction
    facts_digest: str = ""

    @field_validator("version")
    @classmethod
    def _readable(cls, version: int) -> int:
        if version != PLAN_VERSION:
            raise ValueError(f"is {version}, this release reads {PLAN_VERSION}; run `omnizen plan` again")
        return version

    @field_validator("tensors")
    @classmethod
    def _each_once(cls, tensors: list[TensorPlan]) -> list[TensorPlan]:
        twice = [name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]!r} is there twice")
        return tensors

    def __str__(self) -> str:
        """Say in one line what is chosen and expected, as a run does at its start; ``repr`` holds everything."""
        from omnizen.plan.explain import in_brief

        return in_brief(self)

    def scheme(self, name: str) -> str:
        """Return the scheme of one tensor.

        Raises:
            UserError: when the plan has no such tensor.
        """
        by_name = {tensor.name: tensor.scheme for tensor in self.tensors}
        if name not in by_name:
            raise UserError(
                f"the plan holds no tensor of that name: {nearest(name, by_name, listed_by='the plan file')}"
            )
        return by_name[name]

    def check(self, world_size: int, model_digest: str, torch_version: str) -> None:
        """Refuse a plan that was made for another job.

        Raises:
            UserError: says what differs and what to do.
        """
        differs = what_differs(self, world_size, model_digest, torch_version)
        if differs:
            raise UserError(
                f"the plan was made for {differs}; measure and plan again with "
                "`omnizen measure` and `omnizen plan`, or train with plan='auto'"
            )


def what_differs(made_for: Plan | Facts, world_size: int, model_digest: str, torch_version: str) -> str:
    """Return in words what job a plan or facts are of, where it is another one; else nothing.

    Args:
        world_size: workers of this job.
    """
    if made_for.world_size != world_size:
        return f"{made_for.world_size} workers, this job has {world_size}"
    if made_for.model_digest != model_digest:
        return (
            f"another model (parameters' digest {made_for.model_digest or 'unknown'}, "
            f"this model's is {model_digest}: names, shapes, dtypes or what is frozen differ)"
        )
    if made_for.torch_version != torch_version:
        return f"torch {made_for.torch_version}, this is torch {torch_version}"
    return ""
