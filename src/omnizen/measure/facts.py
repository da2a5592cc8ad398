"""Facts: what was measured about the machines, the links and the model; a plan rests on nothing else."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, StringConstraints, field_validator, model_validator

from omnizen.errors import nearest
from omnizen.measure.tomlfile import FACTS, Record, TomlFile

if TYPE_CHECKING:
    from omnizen.types import Sparsity

FACTS_VERSION = 4
READABLE = (1, 2, 3, 4)
"""Versions before lack some of what is optional here; it counts as not measured."""
ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
"""Bytes of one value, by the name of its dtype."""

Kind = Literal["dense", "row-sparse", "element-sparse"]
Speed = Annotated[float, Field(ge=1e-3, le=1e18)]
"""Something a second; beyond these limits no machine is, and times would be infinite or nothing."""
Count = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,9}$")]
"""A number from 1, as a key of a table."""
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=2.0**48)]
MOST_SECONDS, MOST_BYTES = 1e6, 2**62
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS)]


class DeviceFacts(Record):
    """One rank's device.

    Args:
        cores: processor cores that the rank may really use, a cgroup's quota included.
        memory_bytes: memory that it may use.
        merge_bytes_per_s: bytes of rows that it merges (sorts by index and adds) a second, wide rows.
        merge_rows_per_s: rows that it merges a second when rows are one element wide; None when not measured.
        copy_bytes_per_s: bytes that it copies a second; None when not measured.
        bits_per_s: rows whose bits it packs or unpacks a second; None when not measured.
        locate_rows_per_s: rows a second whose place among its hashed rows it finds; None when not measured.
        code_rows_per_s: rows a second whose places it codes or reads; None when not measured.
        code_values_per_s: values a second whose exponents it codes or reads; None when not measured.
        code_part_s: seconds that each message of coded places costs whatever its length; None when not measured.
        code_values_part_s: the same of coded exponents.
        select_elements_per_s: elements a second among which it finds the largest; None when not measured.
        quantise_elements_per_s: elements a second that it quantises or reads; None when not measured.
        samples_per_s: rate of the user's own step, by batch size.
        samples_per_s_spread: (80th - 20th percentile) / median of that rate, by batch size.
    """

    rank: int = Field(ge=0)
    host: str
    device: str
    name: str
    cores: PositiveFloat
    memory_bytes: int = Field(gt=0, le=MOST_BYTES)
    merge_bytes_per_s: Speed
    merge_rows_per_s: Speed | None = None
    copy_bytes_per_s: Speed | None = None
    bits_per_s: Speed | None = None
    locate_rows_per_s: Speed | None = None
    code_rows_per_s: Speed | None = None
    code_values_per_s: Speed | None = None
    code_part_s: Seconds | None = None
    code_values_part_s: Seconds | None = None
    select_elements_per_s: Speed | None = None
    quantise_elements_per_s: Speed | None = None
    samples_per_s: dict[Count, PositiveFloat] = Field(default_factory=dict)
    samples_per_s_spread: dict[Count, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)


class LinkFacts(Record):
    """One direction between two ranks, as the comm layer sees it.

    Args:
        latency_s: seconds that one round costs beyond its bytes.
        bandwidth_bytes_per_s: payload bytes a second.
        estimated: True when the pair was not measured itself but derived from pairs that were.
    """

    source: int = Field(ge=0)
    dest: int = Field(ge=0)
    latency_s: Seconds
    bandwidth_bytes_per_s: Speed
    estimated: bool = False


class MeetingFacts(Record):
    """How long all ranks together take for next to nothing: rounds, hand-over between threads, the last one.

    Args:
        gather_s: seconds in which each gives all others one byte.
        sum_s: seconds in which they sum one number by the backend's own all-reduce.
    """

    gather_s: Seconds
    sum_s: Seconds


class CrowdFacts(Record):
    """How long it takes a rank to ask all others while all others do the same, as servers are asked.

    Args:
        nbytes: of a question, and of its answer.
        ask_s: seconds of such a round when messages are next to nothing.
        cycle_s: seconds of a round with messages of ``nbytes``.
    """

    nbytes: PositiveInt
    ask_s: Seconds
    cycle_s: Seconds


class BalanceFacts(Record):
    """How far the busiest rank is above an even share where rows go to owners; see ``types.Imbalance``."""

    rx: float = Field(default=1.0, ge=0, le=1e6)
    tx: float = Field(default=1.0, ge=0, le=1e6)


class GradientFacts(Record):
    """One parameter's gradient.

    Args:
        density: fraction of rows (elements when element-sparse) that one worker has, d.
        densification: gamma_k = d_k / d by number of workers k.
        skewness: max over n equal ranges of a range's density over d.
        overlap: mean over pairs of ``|A and B| / min(|A|, |B|)``.
        own_profile: rows of one worker in each of some equal ranges of the rows.
        union_profile: rows that any worker has in each of them.
        blocks: by elements in a block, the shares of blocks that one worker and that any worker touches.
        ready: share of backward that has gone by when the gradient is there; None when it was not measured.
        imbalance: of rows that go to owners by hash and by row number; None when it was not measured.
        lazy: whether training may pull the table lazily: its optimizer is row-wise and batches name their rows;
            None when nobody said.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str = "float32"
    density: float = Field(default=1.0, ge=0, le=1)
    densification: dict[Count, PositiveFloat] = Field(default_factory=lambda: {"1": 1.0})
    skewness: float = Field(default=1.0, ge=0)
    overlap: float = Field(default=0.0, ge=0, le=1)
    own_profile: tuple[Amount, ...] = ()
    union_profile: tuple[Amount, ...] = ()
    blocks: dict[Count, tuple[Share, Share]] = Field(default_factory=dict)
    ready: float | None = Field(default=None, ge=0, le=1)
    imbalance: dict[Literal["hash", "cyclic"], BalanceFacts] | None = None
    lazy: bool | None = None

    @field_validator("dtype")
    @classmethod
    def _known_dtype(cls, dtype: str) -> str:
        if dtype not in ITEMSIZES:
            raise ValueError(nearest(dtype, ITEMSIZES))
        return dtype

    @model_validator(mode="after")
    def _profiles_of_the_same_ranges(self) -> Self:
        if len(self.own_profile) != len(self.union_profile):
            raise ValueError(f"profiles have {len(self.own_profile)} and {len(self.union_profile)} ranges")
        return self

    @model_validator(mode="after")
    def _a_shape_of_its_kind(self) -> Self:
        if any(n < 0 for n in self.shape) or self.nbytes > MOST_BYTES:
            raise ValueError(f"no tensor of shape {list(self.shape)} can be")
        if self.kind == "row-sparse" and not self.shape:
            raise ValueError("shape [] has no rows, so the gradient cannot be row-sparse; it is dense")
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * ITEMSIZES[self.dtype]

    def pattern_key(self) -> Hashable:
        """Return what gradients of the same kind and pattern have in common, and no others."""
        measured = (self.density, self.skewness, self.overlap, *self.densification.items())
        uneven = (self.imbalance or {}).items()
        return self.kind, self.shape, self.dtype, *(() if self.kind == "dense" else (*measured, *uneven))

    def sparsity(self) -> Sparsity:
        """Return the pattern that cost formulas take; dense gradients are one row an element."""
        from omnizen.types import Imbalance, Sparsity

        numel = math.prod(self.shape)
        by_row = self.kind == "row-sparse"
        return Sparsity(
            num_rows=self.shape[0] if by_row else numel,
            width=math.prod(self.shape[1:]) if by_row else 1,
            density=1.0 if self.kind == "dense" else self.density,
            densification={1: 1.0} | {int(k): gamma for k, gamma in self.densification.items()},
            skewness=self.skewness,
            overlap=self.overlap,
            itemsize=ITEMSIZES[self.dtype],
            own_profile=self.own_profile,
            union_profile=self.union_profile,
            blocks={int(elements): shares for elements, shares in self.blocks.items()},
            imbalance={name: Imbalance(found.rx, found.tx) for name, found in (self.imbalance or {}).items()},
        )


class StepFacts(Record):
    """One step of the user's model without communication, all ranks running, slowest rank.

    Args:
        compute_s: seconds of forward and backward.
        backward_s: the backward's share of them.
        samples: samples a rank works through in it.
    """

    compute_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)
    samples: int = Field(ge=0)

    @model_validator(mode="after")
    def _a_part(self) -> Self:
        if self.backward_s > self.compute_s * (1 + 1e-9):
            raise ValueError(
                f"backward_s is {self.backward_s}, more than the {self.compute_s} of compute_s around it"
            )
        return self


class PriceFacts(Record):
    """What a strategy costs beside time: samples to the same loss over those of plain synchronous training.

    Measured by short runs of the user's own model, each strategy at its own best momentum. Plain synchronous
    training costs 1 by definition, whatever exact scheme, shares of the batch or machines it uses.

    Args:
        groups: of workers, for "groups".
        local_steps: of a worker between two averages, the mean over workers, for "local".
        compression: catalogue name of what loses something on the way; empty when nothing is lost.
        samples: median over the runs.
        low: 20th percentile.
        high: 80th percentile.
        momentum: at which it was measured; None when the user's own was kept.
        lr: step size at which it was measured; None likewise.
        probes: runs behind it.
    """

    strategy: Literal["sync", "groups", "local"]
    groups: PositiveInt = 1
    local_steps: PositiveFloat = 1.0
    compression: str = ""
    samples: PositiveFloat
    low: PositiveFloat
    high: PositiveFloat
    momentum: float | None = Field(default=None, gt=-1, lt=1)
    lr: PositiveFloat | None = None
    probes: PositiveInt = 1

    @property
    def of(self) -> tuple[str, int, float, str]:
        """What it is the price of."""
        return self.strategy, self.groups, self.local_steps, self.compression

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if not self.low <= self.samples <= self.high:
            raise ValueError(f"samples must lie between low and high, got {self.low}, {self.samples}, {self.high}")
        fits = {"sync": bool(self.compression), "groups": self.groups > 1, "local": self.local_steps > 1}
        if not fits[self.strategy]:
            raise ValueError(
                f"names no strategy other than plain synchronous training, whose price is 1: {self.of}"
            )
        return self


class Facts(TomlFile):
    """Everything that was measured for one job.

    Example:
        >>> facts = Facts(torch_version="2.13.0", world_size=1)
        >>> Facts.from_toml(facts.to_toml()) == facts
        True
    """

    kind: ClassVar[str] = FACTS
    version: int = FACTS_VERSION
    created: str = ""
    torch_version: str
    world_size: PositiveInt
    model_digest: str = ""
    devices: list[DeviceFacts] = Field(default_factory=list)
    links: list[LinkFacts] = Field(default_factory=list)
    meetings: MeetingFacts | None = None
    crowd: CrowdFacts | None = None
    gradients: list[GradientFacts] = Field(default_factory=list)
    step: StepFacts | None = None
    prices: list[PriceFacts] = Field(default_factory=list)

    @field_validator("version")
    @classmethod
    def _readable(cls, version: int) -> int:
        if version not in READABLE:
            known = f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}"
            raise ValueError(f"is {version}, this release reads {known}; run `omnizen measure` again")
        return version

    @model_validator(mode="after")
    def _of_one_job(self) -> Self:
        _once("devices: rank", (device.rank for device in self.devices))
        _once("gradients: name", (gradient.name for gradient in self.gradients))
        _once("prices: the price of", (price.of for price in self.prices))
        _once("links: the link from rank", (f"{link.source} to rank {link.dest}" for link in self.links))
        most = max((0, *(d.rank for d in self.devices), *(max(k.source, k.dest) for k in self.links)))
        if most >= self.world_size:
            raise ValueError(f"rank {most} is named, but world_size is {self.world_size}: ranks begin with 0")
        to_itself = next((link.source for link in self.links if link.source == link.dest), None)
        if to_itself is not None:
            raise ValueError(f"links: rank {to_itself} has a link to itself")
        return self

    def digest(self, *, without: frozenset[str] = frozenset({"created"})) -> str:
        """Return 16 hexadecimal digits of all that was measured; the time of measuring does not count."""
        return super().digest(without=without if self.prices else without | {"prices"})


def _once(what: str, names: Iterable[object]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name} is there twice")
        seen.add(name)
