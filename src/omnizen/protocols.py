"""The contracts. Each docstring states the laws that ``omnizen.laws`` checks over every row of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from omnizen.types import Contribution, Parts, Payload, Reduced, Sparse, Sparsity, State, Step, Traffic

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """A result that may still be under way. ``wait`` may be called more than once."""

    def wait(self) -> T_co:
        """Return the result; raises ``PeerLost`` within the comm's time limit when it cannot come."""
        ...


@dataclass(frozen=True, slots=True)
class Ready(Generic[T]):
    """A pending result that is already there."""

    value: T

    def wait(self) -> T:
        """Return the value."""
        return self.value


class Later(Generic[T]):
    """A pending result whose last part is computed when it is first waited for."""

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish: Callable[[], T] | None = finish
        self._value: T

    def wait(self) -> T:
        """Compute once, then return the same value."""
        if self._finish is not None:
            self._value, self._finish = self._finish(), None
        return self._value


@runtime_checkable
class Comm(Protocol):
    """The only thing that touches a network.

    Laws: every rank calls the same verbs in the same order; each wait ends within ``timeout_s`` with the result
    or a ``PeerLost`` that names rank, peer, step and elapsed time; inputs are not changed; results are fresh
    tensors on ``device``; empty parts and ``size == 1`` work; dtypes and NaN survive bit for bit.
    Parts that ranks exchange must have the same number, dtypes and trailing shapes on all ranks; the first
    dimension may differ by rank and by destination.
    """

    rank: int
    size: int
    device: torch.device
    name: str
    timeout_s: float
    step: int | None
    """Step to name in errors; set by whoever drives the steps."""

    def all_reduce(self, x: Tensor) -> Pending[Tensor]:
        """Sum over ranks; every rank gets the same bits."""
        ...

    def all_gather(self, parts: Parts) -> Pending[list[Parts]]:
        """Give every rank's parts to every rank, in rank order; first dimensions may differ."""
        ...

    def all_to_all(self, parts: Sequence[Parts]) -> Pending[list[Parts]]:
        """Send ``parts[j]`` to rank j; return what each rank sent here, in rank order."""
        ...

    def exchange(self, out: Mapping[int, Parts], sources: Sequence[int], like: Parts) -> Pending[dict[int, Parts]]:
        """Send ``out[j]`` to each rank j in ``out`` and receive from each rank in ``sources``.

        Only the named pairs talk; ``like`` gives the dtypes and trailing shapes of what comes in (its first
        dimension is ignored). A rank may send without receiving and the other way round.
        """
        ...

    def barrier(self) -> None:
        """Return when every rank has called it."""
        ...

    def sub(self, ranks: Sequence[int], name: str) -> Comm | None:
        """Make a group of the given ranks (called by every rank of this comm); None on ranks outside it."""
        ...

    def close(self) -> None:
        """Free what the comm holds; calling it twice is harmless."""
        ...


class Mailbox(Protocol):
    """Questions and answers between two ranks at a time; nobody waits for a third.

    Laws: an answer goes to who asked; the questions of one rank to another are answered in order, those of
    different ranks side by side; a rank that is slow or gone delays only those who ask it; each wait ends within
    ``timeout_s`` without progress with the answer or a ``PeerLost`` that names rank, peer, step and elapsed time;
    after that each further question to that rank raises at once. Inputs are not changed; answers are fresh tensors
    on the CPU; dtypes, shapes and NaN survive bit for bit, and need not be announced.
    """

    rank: int
    size: int
    name: str
    timeout_s: float
    step: int | None
    """Step to name in errors."""

    def ask(self, dest: int, parts: Parts) -> Pending[Parts]:
        """Send parts to a rank; its answer comes when waited for. A rank may ask itself.

        Raises (when waited for):
            PeerLost: the rank is gone, or did not answer within the limit.
            NoAnswer: what answers there raised an error; the mailbox lives on.
        """
        ...

    def serve(self, answer: Callable[[int, Parts], Parts]) -> None:
        """Begin to answer; questions that came before are answered now. Called once.

        Args:
            answer: from who asks and what, to what is answered. Runs on a thread for each rank that asks, so that
                one that takes long does not hold up the others.
        """
        ...

    def lost(self) -> frozenset[int]:
        """Return the ranks that are known to be gone."""
        ...

    def close(self) -> None:
        """Tell the others that this rank is gone, and answer no more; twice is harmless."""
        ...


@runtime_checkable
class HasMailbox(Protocol):
    """A comm whose ranks can ask each other."""

    def mailbox(self, name: str) -> Mailbox:
        """Make a mailbox (called by every rank of this comm); it closes with the comm."""
        ...


class Codec(Protocol):
    """How a tensor is packed: stateless, network-free, pipeable with ``codecs.pipe``.

    Laws: ``decode(encode(x))`` has the kind, shape and dtype of x; the bytes of the result equal
    ``nbytes(...)`` within its range; decoding needs nothing but the payload (a pickled copy in another process
    decodes the same); when ``exact``, decoding gives x bit for bit; when ``summable``, payloads may be added.
    """

    @property
    def name(self) -> str:
        """Name in the catalogue and in records."""
        ...

    @property
    def takes(self) -> type[Payload]:
        """Kind of payload that it packs."""
        ...

    @property
    def gives(self) -> type[Payload]:
        """Kind of payload that it makes."""
        ...

    @property
    def summable(self) -> bool:
        """Whether payloads may be added on the wire."""
        ...

    @property
    def unbiased(self) -> bool:
        """Whether the mean over many steps of what arrives is what was sent."""
        ...

    @property
    def exact(self) -> bool:
        """Whether what arrives is what was sent, bit for bit."""
        ...

    def encode(self, payload: Payload, step: Step) -> Payload:
        """Pack; never changes its input."""
        ...

    def decode(self, payload: Payload) -> Payload:
        """Unpack."""
        ...

    def nbytes(self, pattern: Sparsity) -> tuple[float, float]:
        """Return the least and the most bytes that one encoded contribution of this pattern takes."""
        ...


class Selector(Protocol):
    """Which elements of a flat tensor are kept. Stateless; thresholds that live on belong into a reducer's State.

    Laws: what is selected is Sparse of width 1, indices ascending; values are the tensor's own, rescaled only when
    ``unbiased``; NaN and infinity are always selected (unless the selector is a ``SharedSelector``), so that they
    are reported and not hidden; ``keeps`` bounds
    how many come beyond those; the tensor and the step alone decide; the input is never changed.
    """

    @property
    def name(self) -> str:
        """Name in the catalogue and in records."""
        ...

    @property
    def density(self) -> float:
        """Fraction of elements that it aims to keep, in (0, 1]; k is ``max(1, round(density numel))``, 0 of 0."""
        ...

    @property
    def unbiased(self) -> bool:
        """Whether the mean over many steps of what is selected is the tensor."""
        ...

    def select(self, flat: Tensor, step: Step) -> Sparse:
        """Return the kept elements of ``flat`` ``[numel]``; indices count from its start."""
        ...

    def keeps(self, numel: int) -> tuple[int, int]:
        """Return the least (zeros aside) and the most finite elements that it keeps of ``numel``."""
        ...


@runtime_checkable
class SharedSelector(Selector, Protocol):
    """A selector that chooses without a look at the values, from the step's shared seed: alike on all ranks.

    Then no index travels, and values can be summed on the wire. What is not finite may be left out: whoever
    reduces has to look for it.
    """

    def support(self, numel: int, step: Step) -> Tensor:
        """Return the kept elements of any tensor of ``numel`` elements, ascending int64, on the CPU."""
        ...


class Reducer(Protocol):
    """How contributions are combined into their average. Hyper-parameters are frozen; memory lives in State.

    Laws: when ``agrees``, all ranks get the same bits; when ``conserves``, the mean over ranks of ``value``
    equals the mean of ``sent``; when ``exact``, value equals the dense average up to summation order; when it has
    ``linear = True``, the value depends on the contributions through their mean alone (what travels is added up);
    ``traffic(pattern, size)`` equals the meter (to the byte for exact schemes with measured densification);
    a lost peer raises ``PeerLost``; size 1, empty contributions, row 0, NaN and inf and non-contiguous values
    are right; the input is never changed.
    """

    @property
    def name(self) -> str:
        """Scheme name in the catalogue, in plans and in records."""
        ...

    @property
    def takes(self) -> tuple[type[Contribution], ...]:
        """Kinds of contribution that it reduces."""
        ...

    @property
    def agrees(self) -> bool:
        """Whether all ranks get the same bits."""
        ...

    @property
    def conserves(self) -> bool:
        """Whether the mean over ranks of ``value`` is the mean of ``sent``."""
        ...

    @property
    def exact(self) -> bool:
        """Whether value is the dense average, up to summation order."""
        ...

    def init(self, like: Contribution) -> State:
        """Return the state before the first step."""
        ...

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to average x over the ranks of comm."""
        ...

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at the busiest of ``size`` ranks."""
        ...
