"""Compute groups: synchronous inside a group, asynchronous between them through servers sharded over all ranks.

After Hadjis et al., "Omnivore", arXiv:1606.04487, with its one model server spread over the ranks: rank s serves
the s-th of n equal parts of the model. In a cycle, a group averages its gradients, each of its k members pushes one
k-th of them to the servers of that part and pulls the new weights back, and the members gather what they pulled.
Messages of servers queue at both ends' links, first come first served; what groups do among themselves goes on
beside them and takes longer by the time for which they hold the links.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from omnizen.comm.links import Floats
from omnizen.errors import UserError
from omnizen.simulate.cluster import Cluster, Job, Outcome, checked_batch
from omnizen.simulate.network import Ints, Network
from omnizen.simulate.phases import Swap
from omnizen.simulate.synchronous import reduce

ROUNDS = 8
"""Cycles of a group on average; the first quarter does not count."""
MOST_UPDATES = 6_000
LEAST_S = 1e-6
"""A delay below this share of the time gone by is not looked at again."""


def grouped(
    job: Job,
    cluster: Cluster,
    groups: int | Sequence[Sequence[int]],
    batch: Floats,
    *,
    updates: int | None = None,
    seed: int = 0,
    inside: Sequence[Job] | None = None,
) -> Outcome:
    """Let groups train side by side.

    Args:
        groups: how many, of neighbouring ranks, or which ranks are in each.
        batch: ``[n]``, samples of each worker in a cycle; a group's batch is the sum of its members'.
        updates: that are simulated; enough for a steady state unless given.
        seed: of random work times.
        inside: what each group's own reductions are, where they differ from the job's.

    Raises:
        UserError: a rank is in no group or in several.

    Example:
        >>> cluster = Cluster(Network.uniform(4, 1e9), np.full(4, 0.01))
        >>> out = grouped(Job([], model_bytes=1e3), cluster, 4, np.full(4, 10))
        >>> round(out.update_s, 3), out.staleness.index(max(out.staleness))
        (0.025, 3)
    """
    batch = checked_batch(batch, cluster)
    members = _members(groups, cluster.size)
    running = _Running(job, cluster, batch, members, inside or [job] * len(members), np.random.default_rng(seed))
    return running.run(updates or max(2 * len(members), min(ROUNDS * len(members), MOST_UPDATES)))


def _members(groups: int | Sequence[Sequence[int]], size: int) -> list[Ints]:
    if isinstance(groups, int):
        if not 1 <= groups <= size:
            raise UserError(f"groups: {size} workers make 1 to {size} groups, got {groups}")
        return np.array_split(np.arange(size), groups)
    members = [np.array(group, dtype=np.int64) for group in groups]
    if sorted(int(r) for group in members for r in group) != list(range(size)) or not all(map(len, members)):
        raise UserError(f"groups: each of the ranks 0 to {size - 1} must be in one group")
    return members


class _Stage(Enum):
    COMPUTED = "computed"
    AVERAGED = "averaged"
    APPLIED = "applied"
    GATHERED = "gathered"


_Event = tuple[float, int, _Stage, Floats]
"""When, which group (which also settles ties), what it has done, and when each rank had."""


@dataclass(slots=True)
class _Running:
    job: Job
    cluster: Cluster
    batch: Floats
    members: list[Ints]
    inside: Sequence[Job]
    rng: np.random.Generator
    events: list[_Event] = field(default_factory=list)
    nets: list[Network] = field(init=False)
    up_free: Floats = field(init=False)
    down_free: Floats = field(init=False)
    serves_until: Floats = field(init=False)
    held_s: Floats = field(init=False)
    seen_held_s: list[Floats] = field(init=False)
    computed: Floats = field(init=False)

    def __post_init__(self) -> None:
        n = self.cluster.size
        self.nets = [self.cluster.network.part(group) for group in self.members]
        self.up_free, self.down_free, self.serves_until = np.zeros(n), np.zeros(n), np.zeros(n)
        self.held_s, self.computed = np.zeros(n), np.zeros(n)
        self.seen_held_s = [np.zeros(len(group)) for group in self.members]

    def run(self, updates: int) -> Outcome:
        """Take events in the order of time until so many updates are applied."""
        for number, group in enumerate(self.members):
            self._compute(number, np.zeros(len(group)))
        done, skipped, samples = 0, updates // 4, 0.0
        pulled, staleness = [0] * len(self.members), Counter[int]()
        counted_from_s = now_s = 0.0
        while done < updates:
            now_s, number, stage, at = heapq.heappop(self.events)
            if stage is _Stage.COMPUTED:
                self._average(number, at)
            elif self._still(number, stage, at):
                pass
            elif stage is _Stage.AVERAGED:
                self._push(number, at)
            elif stage is _Stage.GATHERED:
                self._compute(number, at)
            else:
                if done == skipped:
                    counted_from_s = now_s
                elif done > skipped:
                    staleness[done - pulled[number]] += 1
                    samples += float(self.batch[self.members[number]].sum())
                done += 1
                pulled[number] = done
                self._pull(number, at)
        seconds = max(now_s - counted_from_s, 1e-300)
        counted = updates - skipped - 1
        histogram = [staleness[i] for i in range(max(staleness, default=0) + 1)]
        busy = np.minimum(1.0, self.computed / max(now_s, 1e-300))
        return Outcome(seconds / counted, samples / seconds, counted, busy, histogram)

    def _then(self, number: int, stage: _Stage, at: Floats) -> None:
        heapq.heappush(self.events, (float(at.max()), number, stage, at))

    def _compute(self, number: int, start: Floats) -> None:
        group = self.members[number]
        took = self.cluster.draw(self.cluster.mean_s(self.batch)[group], self.rng)
        self.computed[group] += took
        # Start and duration, so that what overlaps with backward can begin before this event.
        heapq.heappush(self.events, (float((start + took).max()), number, _Stage.COMPUTED, np.stack([start, took])))

    def _average(self, number: int, at: Floats) -> None:
        self.seen_held_s[number] = self.held_s[self.members[number]]
        self._then(number, _Stage.AVERAGED, reduce(self.inside[number], at[0], at[1], self.nets[number]))

    def _still(self, number: int, stage: _Stage, at: Floats) -> bool:
        """Return whether a group's own traffic takes longer because servers held its links meanwhile."""
        if stage is _Stage.APPLIED or len(at) == 1:
            return False
        held = self.held_s[self.members[number]]
        longer_s = float((held - self.seen_held_s[number]).max())
        self.seen_held_s[number] = held
        if longer_s <= LEAST_S * float(at.max()):
            return False
        self._then(number, stage, at + longer_s)
        return True

    def _push(self, number: int, at: Floats) -> None:
        """Send a group's average to the servers; the event is that all have applied it."""
        servers, sender, position, sending, delay = self._shards(number, pushing=True)
        through = np.cumsum(sending)
        sent = np.maximum(at, self.up_free[self.members[number]])[sender]
        sent += through - (through - sending)[position[sender]]
        # A link's queue grows by what passes it, not by the time for which it waits for others.
        group, sent_s = self.members[number], np.add.reduceat(sending, position)
        self.up_free[group] = np.maximum(self.up_free[group], at) + sent_s
        down_free = np.maximum(self.down_free[servers], at[sender]) + sending
        self.down_free[servers] = np.where(sending > 0, down_free, self.down_free[servers])
        self._hold(group, sent_s, servers, sending)
        arrived = np.where(sending > 0, np.maximum(sent, self.down_free[servers]), at[sender]) + delay
        apply_s = self.job.model_bytes / self.cluster.size / self.job.update_bytes_per_s
        self.serves_until[servers] = np.maximum(self.serves_until[servers], at[sender]) + apply_s
        self._then(number, _Stage.APPLIED, np.maximum(arrived + apply_s, self.serves_until[servers]))

    def _pull(self, number: int, at: Floats) -> None:
        """Send the new model to a group, whose members then gather each other's parts of it."""
        servers, _, position, sending, delay = self._shards(number, pushing=False)
        group, net = self.members[number], self.nets[number]
        up_free = np.maximum(self.up_free[servers], at) + sending
        self.up_free[servers] = np.where(sending > 0, up_free, self.up_free[servers])
        sent = np.where(sending > 0, up_free, at)
        first, received_s = np.minimum.reduceat(at, position), np.add.reduceat(sending, position)
        self.down_free[group] = np.maximum(self.down_free[group], first) + received_s
        self._hold(group, received_s, servers, sending)
        pulled = np.maximum(np.maximum.reduceat(sent + delay, position), self.down_free[group])
        if len(group) > 1:
            pulled = Swap(self.job.model_bytes / len(group)).run(pulled, net)
        self.seen_held_s[number] = self.held_s[group]
        self._then(number, _Stage.GATHERED, pulled)

    def _hold(self, group: Ints, group_s: Floats, servers: Ints, servers_s: Floats) -> None:
        # Both ways at once are not told apart: half of each is what a collective, which needs both, waits.
        self.held_s[servers] += servers_s / 2
        self.held_s[group] += group_s / 2

    def _shards(self, number: int, *, pushing: bool) -> tuple[Ints, Ints, Ints, Floats, Floats]:
        """Return servers in their members' order; by server, who asks it; by member, the place of its first server.

        The last two are seconds and delay of a message. Members serve their own parts themselves, those of ranks
        outside are dealt out evenly.
        """
        n, group = self.cluster.size, self.members[number]
        outside = np.setdiff1d(np.arange(n), group)
        member = np.concatenate([np.arange(len(group)), np.arange(len(outside)) % len(group)])
        order = np.argsort(member, kind="stable")
        servers, member = np.concatenate([group, outside])[order], member[order]
        ways = (group[member], servers) if pushing else (servers, group[member])
        there = group[member] != servers
        rate = self.cluster.network.rate(*ways) * self.job.crowded_share
        sending = np.where(there, self.job.model_bytes / n / rate, 0.0)
        delay = np.where(there, self.cluster.network.delay(*ways) + self.job.ask_s / 2, 0.0)
        return servers, member, np.searchsorted(member, np.arange(len(group))), sending, delay
