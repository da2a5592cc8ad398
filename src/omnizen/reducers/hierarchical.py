"""Reduce inside each group of ranks, average across groups by another reducer, gather inside."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from omnizen.codecs.coo import index_bytes
from omnizen.errors import UserError
from omnizen.protocols import Comm, Later, Pending, Reducer
from omnizen.reducers import shares, wire_cost
from omnizen.reducers.bases import Around
from omnizen.reducers.by_size import checked_reducer
from omnizen.reducers.contribution import checked
from omnizen.reducers.state import inner, joined, nested
from omnizen.spans import span
from omnizen.types import Contribution, Reduced, Sparse, Sparsity, State, Step, Traffic

ACROSS, READY = "across", "ready"
Groups = int | tuple[tuple[int, ...], ...]


def by_host(hosts: Sequence[Hashable]) -> tuple[tuple[int, ...], ...]:
    """Return groups of the ranks that share a host, from each rank's host.

    Example:
        >>> by_host(["a", "b", "a"])
        ((0, 2), (1,))
    """
    groups: dict[Hashable, list[int]] = {}
    for rank, host in enumerate(hosts):
        groups.setdefault(host, []).append(rank)
    return tuple(tuple(ranks) for ranks in groups.values())


@dataclass(frozen=True, slots=True)
class Hierarchical(Around):
    """Keep most bytes inside groups whose links are fast: across them, each rank carries only its share.

    Inside a group each rank sums one share of the tensor (rows ``r % g == j``, or a piece of a dense tensor), the
    ranks with equal shares of all groups average it by the wrapped reducer, and each group gathers the shares. A
    group of g ranks thus sends across what one rank alone would, each of them a g-th. With a lossy reducer in the
    middle (top-k with an all-gather) this is HiTopKComm; around the parameter server it is Parallax' aggregation
    inside a machine. Groups need not be equal; the smallest decides how many shares there are.

    Memory of the wrapped reducer (error feedback) is that of the share; what it did not send counts as not sent by
    the rank that has the share. Waits must come in the same order on all ranks.

    Args:
        reducer: averages a share across groups.
        groups: ranks of each group, every rank once; a number means neighbouring ranks, so many in each group.

    Reference: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters"
    (HiTopKComm), MLSys 2021; Kim et al., "Parallax", EuroSys 2019 (local aggregation).
    """

    reducer: Reducer
    groups: Groups

    def __post_init__(self) -> None:
        checked_reducer("Hierarchical", self.reducer)
        if isinstance(self.groups, tuple):
            ranks = sorted(rank for group in self.groups for rank in group)
            if not ranks or ranks != list(range(len(ranks))) or not all(self.groups):
                raise UserError(f"Hierarchical: groups must hold each of ranks 0..n-1 once, got {self.groups}")
        elif isinstance(self.groups, bool) or not isinstance(self.groups, int) or self.groups < 1:
            raise UserError(f"Hierarchical: groups are tuples of ranks or a number from 1, got {self.groups!r}")

    @property
    def name(self) -> str:
        """The reducer's name behind the wrapper's."""
        return f"hierarchical({self.reducer.name})"

    def init(self, like: Contribution) -> State:
        """Nothing yet: how large a rank's share is depends on the comm, so the first step makes the state."""
        del like
        return State()

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to sum inside the group; the rest follows when the result is waited for."""
        checked(x, self.takes, self.name)
        place = _place(comm, self.layout(comm.size))
        with span("encode", step.name):
            parts = shares.cut(x, place.shares, place.group.size)
        pending = place.group.all_to_all(parts)

        def finish() -> Reduced:
            received = pending.wait()
            told, after, lost = shares.nothing(x), state, None
            if place.rail is not None:
                with span("decode", step.name):
                    factor = place.rail.size / comm.size  # the reducer divides by the number of groups
                    share = shares.summed(received, x, place.group.rank, place.shares, factor)
                before = inner(state, ACROSS) if READY in state.scalars else self.reducer.init(share)
                reduced = self.reducer.start(share, before, place.rail, step).wait()
                after = joined(nested(reduced.state, ACROSS), State(scalars={READY: 1.0}))
                told = shares.told(reduced.value, x)
                lost = None if reduced.sent is None else shares.difference(share, reduced.sent)
            gathered = place.group.all_gather(told).wait()
            with span("decode", step.name):
                value = shares.joined(gathered[: place.shares], x)
                sent = None
                if place.rail is not None and lost is not None:
                    sent = shares.less(x, lost, place.group.rank, place.shares, comm.size / place.rail.size)
            return Reduced(value, sent, after)

        return Later(finish)

    def layout(self, size: int) -> tuple[tuple[int, ...], ...]:
        """Return the groups of so many ranks.

        Raises:
            UserError: when the groups name another number of ranks.
        """
        if isinstance(self.groups, int):
            return tuple(tuple(range(at, min(size, at + self.groups))) for at in range(0, size, self.groups))
        named = sum(len(group) for group in self.groups)
        if named != size:
            raise UserError(f"Hierarchical: groups hold {named} ranks, this comm has {size}")
        return self.groups

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at the busiest rank: one of the largest group, with a share or without.

        Where groups are not equal, all of them are counted like the largest.
        """
        groups = self.layout(size)
        parts, largest = min(map(len, groups)), max(map(len, groups))
        across = self.reducer.traffic(_share_of(pattern, largest, parts, len(groups)), len(groups))
        rows = Sparse in self.reducer.takes and pattern.density < 1
        a_row = pattern.width * pattern.itemsize + (index_bytes(pattern.num_rows) if rows else 0)
        own, union = pattern.rows * a_row, min(pattern.union_rows(size) * a_row, float(pattern.dense_bytes))
        others, part = largest - 1, 1 / parts
        push = wire_cost.scheduled(others * own * part, own * (1 - part), 2, largest)
        pull = wire_cost.scheduled(union * (1 - part), others * union * part, 2, largest)
        whole = push + across + pull
        if largest > parts:  # a rank without a share sends all that it has and gets the whole
            idle = wire_cost.scheduled(0.0, own, 2, largest) + wire_cost.scheduled(union, 0.0, 2, largest)
            whole = replace(
                whole, rx_bytes=max(whole.rx_bytes, idle.rx_bytes), tx_bytes=max(whole.tx_bytes, idle.tx_bytes)
            )
        return whole


def _share_of(pattern: Sparsity, ranks: int, parts: int, groups: int) -> Sparsity:
    """Return the pattern of one share, added up over a group."""
    itemsize = max(4, pattern.itemsize)
    if pattern.density >= 1:
        return Sparsity(round(pattern.num_rows * pattern.width / parts), 1, 1.0, itemsize=itemsize)
    covered = pattern.union_rows(ranks)
    gammas = {k: pattern.union_rows(k * ranks) / covered if covered else 1.0 for k in range(1, groups + 1)}
    rows = -(-pattern.num_rows // parts)
    return replace(
        pattern, num_rows=rows, density=covered / max(1, pattern.num_rows), densification=gammas, itemsize=itemsize,
        own_profile=(), union_profile=(), blocks={}, imbalance={},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    """One rank's groups.

    Args:
        group: ranks whose links are fast; the first ``shares`` of them have a share.
        rail: the ranks of all groups that have the same share; None without one.
        shares: into which the tensor is cut.
    """

    group: Comm
    rail: Comm | None
    shares: int


def _place(comm: Comm, layout: tuple[tuple[int, ...], ...]) -> _Place:
    """Make the groups once for each comm; they live and end with it."""
    made: dict[tuple[tuple[int, ...], ...], _Place] = vars(comm).setdefault("_hierarchical_places", {})
    if layout not in made:
        parts = min(map(len, layout))
        inside = [comm.sub(ranks, f"group{at}") for at, ranks in enumerate(layout)]
        rails = [comm.sub([ranks[at] for ranks in layout], f"share{at}") for at in range(parts)]
        group = next(sub for sub in inside if sub is not None)
        made[layout] = _Place(group, next((sub for sub in rails if sub is not None), None), parts)
    return made[layout]


def hierarchical(reducer: Reducer, groups: int | Sequence[Sequence[int]] = 2) -> Hierarchical:
    """Wrap a reducer that averages across groups of ranks; see ``Hierarchical``."""
    if isinstance(groups, Sequence) and not isinstance(groups, str):
        return Hierarchical(reducer, tuple(tuple(ranks) for ranks in groups))
    return Hierarchical(reducer, groups)
