"""Drives compute groups: takes the group's gradient away from the user's optimizer and brings new weights back.

Reference: Hadjis, Zhang, Mitliagkas, Iter and Ré, "Omnivore: An Optimizer for Multi-device Deep Learning on
CPUs and GPUs", arXiv 1606.04487, 2016 (compute groups; momentum at the model server, shared by all groups).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from omnizen.comm.letters import seal, unseal
from omnizen.comm.meter import Metered
from omnizen.errors import UserError
from omnizen.protocols import HasMailbox, Mailbox
from omnizen.train.groups.client import NOTHING, Asked, Client
from omnizen.train.groups.copies import Copies
from omnizen.train.groups.layout import cut, first_host
from omnizen.train.groups.loader import GroupLoader
from omnizen.train.groups.members import Members
from omnizen.train.groups.messages import Ask, Message, pack_text, unpack_answer, unpack_text
from omnizen.train.groups.mirror import cut_state, join_states, settings_text
from omnizen.train.groups.server import Answer, Owner
from omnizen.train.groups.service import Layout, Service
from omnizen.train.groups.setup import comms_inside
from omnizen.train.groups.slices import Item, gradient_item, pack_items

if TYPE_CHECKING:
    from omnizen.train.run import Run


class Groups:
    """One rank of compute groups.

    Args:
        run: its engine averages gradients inside this rank's group.
        groups: ranks of each group.
    """

    def __init__(self, run: Run, groups: Sequence[Sequence[int]]) -> None:
        self._run, self.rank = run, run.rank
        self._inside = run.engine.gradients
        self._box, self._aside = (open_mailbox(run, name) for name in ("servers", "copies"))
        self.members = Members(groups, lambda: self._box.lost() | self._aside.lost())
        self.group = self.members.group_of(run.rank)
        self._comms = {tuple(map(tuple, groups)): (self._inside, run.engine.control)}
        run.engine.odd.called = lambda rank: self.members.groups[self.group][rank]
        self._params, owners = owned_params(run.model, run.optimizers)
        shards = cut(self._params, run.size)
        self._layout = Layout(
            shards,
            [[self._params[piece.param].dtype for piece in shard] for shard in shards],
            [[owners[piece.param] for piece in shard] for shard in shards],
            run.optimizers,
        )
        self.notes: list[str] = []
        """What happened to other ranks, in sentences."""
        self._told, self._known_lost = 0, frozenset[int]()
        run.engine.place, run.engine.counted = lambda: self._copies.version(0), "contributions"
        self._copies = Copies(shards, self._params, len(groups))
        self.service = Service(self._box, self._aside, self.members, self._layout, self._copies, self.notes.append)
        self.client = Client(self._box, self.members, len(shards), self._copies.lock)
        self._mine = share_work(self.members.groups[self.group], len(shards), run.size)[run.rank]
        self._sequence = 0
        self._taken: dict[int, Tensor] = {}
        self.stepped: Callable[[], None] = lambda: None
        """Told of each contribution that was heard."""
        self._begin()

    def _begin(self) -> None:
        """Begin the servers from the copies, with the state that the optimizers hold, which keep none of it."""
        self.service.open(self._copies, self._cut_states)
        for optimizer in self._run.optimizers:
            optimizer.state.clear()

    def _cut_states(self, shard: int) -> list[dict[str, Any]]:
        found = []
        for piece, owner in zip(self._layout.shards[shard], self._layout.owners[shard], strict=True):
            param = self._params[piece.param]
            state = self._run.optimizers[owner.optimizer].state.get(param, {})
            found.append(cut_state(state, param.shape, piece))
        return found

    def serve(self) -> None:
        """Begin to answer, once all of this rank is set up."""
        self._aside.serve(self.service.answer)
        self._box.serve(self.service.answer)

    # --- steps

    def before_step(self, optimizer: Optimizer) -> None:
        """Take all gradients away, so that the user's optimizer does nothing."""
        del optimizer
        for number, param in enumerate(self._params):
            if param.grad is not None:
                self._taken[number], param.grad = param.grad, None

    def after_step(self) -> None:
        """Contribute the group's gradient and take the newest weights."""
        taken, self._taken = self._taken, {}
        if any(param.grad is not None for param in self._params):
            raise UserError(
                "gradients were computed inside of optimizer.step(); with compute groups call loss.backward() "
                "before it, without a closure"
            )
        if not taken:
            self.stepped()
            return
        began_s = time.monotonic()
        self._box.step = self._run.step - 1
        settings = pack_text(settings_text(self._run.optimizers))
        asked: dict[int, Asked] = {}
        for shard in self._mine:
            items: list[Item] = [gradient_item(taken.get(s.param), s) for s in self._layout.shards[shard]]
            numbers = (self._sequence, self._copies.version(shard))
            asked[shard] = self.client.ask_shard(Ask.PUSH, shard, numbers, [settings, *pack_items(items)])
        self._sequence += 1
        self._take(asked)
        self.stepped()
        if len(self._run.optimizers) == 1:  # as if it had never been away
            for number, grad in taken.items():
                self._params[number].grad = grad
        if self._run._record is not None:
            self._run._record.waited(began_s, time.monotonic())
        self._tell()

    def _take(self, asked: dict[int, Asked]) -> None:
        """Wait for answers to this rank's shards, hear those of the others in the group, and write new weights."""
        answers: dict[int, Message] = {}
        for shard, each in asked.items():
            answers[shard] = each.wait(partial(self._accept, shard))
        found = {shard: self._read(shard, answer.parts) for shard, answer in answers.items()}
        if self._inside.size > 1:
            own = [torch.tensor(sorted(answers), dtype=torch.int64)]
            letters = [*own, *(seal(answers[shard].parts) for shard in sorted(answers))]
            bundle = seal(letters).to(self._inside.device)
            for (letter,) in self._run.engine.call(lambda: self._inside.all_gather([bundle]).wait()):
                numbers, *sealed = unseal(letter.cpu())
                for shard, raw in zip(numbers.tolist(), sealed, strict=True):
                    if shard not in found:
                        found[shard] = self._read(shard, unseal(raw))
                        self._copies.accept(shard, found[shard])
        self._write(found)

    def _read(self, shard: int, parts: list[Tensor]) -> Answer:
        return unpack_answer(parts, self._layout.shards[shard], self._layout.dtypes[shard])

    def _accept(self, shard: int, message: Message) -> None:
        self._copies.accept(shard, self._read(shard, message.parts))

    @torch.no_grad()
    def _write(self, found: dict[int, Answer]) -> None:
        for shard, answer in found.items():
            for piece, item in zip(self._layout.shards[shard], answer.items, strict=True):
                param = self._params[piece.param]
                plain = param.is_contiguous()
                whole = param if plain else param.contiguous()
                if isinstance(item, tuple):
                    piece.of(whole)[item[0].to(param.device)] = item[1].view(-1, *piece.shape[1:]).to(param.device)
                elif item is not None:
                    piece.of(whole).copy_(item)
                if not plain and item is not None:
                    param.copy_(whole)

    def _tell(self) -> None:
        lost = self.members.lost
        for rank in sorted(lost - self._known_lost):
            self.notes.append(
                f"rank {rank} is lost; its group {self.members.group_of(rank)} takes no part any more"
            )
        self._known_lost, record = lost, self._run._record
        if record is not None:
            for text in self.notes[self._told :]:
                record.note(self._run.step, text)
                self._told += 1

    # --- meetings

    def flush(self) -> None:
        """Let all ranks have the newest weights, and the average of the groups' BatchNorm statistics."""
        self._box.step = self._run.step
        label = "run.close()" if self._run._closed else "run.flush() or run.save()"
        first = self.members.groups[self.group][0] == self._run.rank
        buffers = self._run.engine.buffers
        lowest = self.members.working()[0] in self.members.groups[self.group]
        brought = buffers.packed(1.0, first=lowest) if first else NOTHING
        total = self.client.meet(label, brought)
        if total.numel():
            buffers.take_sum(total)
        pulls = {
            shard: self.client.ask_shard(Ask.PULL, shard, (self._copies.version(shard),)) for shard in self._mine
        }
        self._take(pulls)
        self.client.leaving = self._run._closed
        self.client.meet(f"{label}, end", NOTHING)
        self._tell()

    def regroup(self, groups: Sequence[Sequence[int]], samples: Sequence[int]) -> None:
        """Train in other groups from now on; the servers keep values, optimizer state and versions.

        Args:
            samples: of each rank in a step, of which the proportion counts; as many on all when empty.

        Raises:
            UserError: a rank is lost, or ranks are at places in the data from which they cannot go on together.
        """
        self.flush()
        if lost := sorted(self.members.lost):
            raise UserError(f"rank {lost[0]} is lost, so groups stay as they are")
        loader = self._run.loader if isinstance(self._run.loader, GroupLoader) else None
        place = (0, 0, 0) if loader is None else loader.place()
        rows = torch.zeros(self._run.size, 4, dtype=torch.float64)
        rows[self.rank] = torch.tensor([self._run.step, *place], dtype=torch.float64)
        label = f"run.regroup({[list(group) for group in groups]}, samples={list(samples)})"
        steps, passes, epochs, read = self.client.meet(label, rows).long().T.tolist()
        if len(set(zip(passes, epochs, strict=True))) > 1 or min(read) < 0:
            raise UserError(
                f"ranks are in different passes over the data ({passes}), or still read what was drawn before a "
                "checkpoint; call run.regroup() between two passes, or before any group comes to the end of one"
            )
        key = tuple(map(tuple, groups))
        if key not in self._comms:
            self._comms[key] = comms_inside(self._run, groups)
        of_groups = [read[group[0]] for group in self.members.groups]
        self.members.regroup(groups)
        self.group = self.members.group_of(self.rank)
        self.service.regroup(len(groups))
        if loader is not None:
            loader.regroup(samples, of_groups, epochs[0])
        self._inside, control = self._comms[key]
        self._run.engine.join(self._inside, control, step=max(steps))
        self._mine = share_work(self.members.groups[self.group], len(self._layout.shards), self._run.size)[
            self.rank
        ]
        self._sequence = 0
        self.client.meet(f"{label}, end", NOTHING)
        if loader is not None:
            loader.sampler.hear()

    def close(self) -> None:
        """Leave, once all others have heard that the last meeting was complete."""
        if self.client.leaving and self._run.rank == self.client.meeting_rank():
            self.service.assembly.all_told(self.client.meetings - 1, self._box.timeout_s)
        self._box.close()
        self._aside.close()

    # --- what is known, and what is kept

    def staleness(self) -> Counter[int]:
        """Return how stale contributions were, over all shards: how often each number of versions was counted."""
        total: Counter[int] = Counter()
        for rank in range(self._run.size):
            if rank not in self.members.lost:
                for versions, count in self.client.ask(Ask.STALENESS, (), first=rank).wait().parts[0].tolist():
                    total[versions] += count
        return total

    def check_save(self) -> None:
        """Refuse a checkpoint without the parts of ranks that are lost."""
        if lost := sorted(self.members.lost):
            raise UserError(
                f"rank {lost[0]} is lost, and a checkpoint holds something of every rank; keep the weights with "
                "torch.save(model.state_dict(), ...) after run.flush()"
            )

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Let the user's optimizers hold the state that lies at the servers, on this rank alone."""
        found: dict[int, list[Any]] = {}
        for shard, pieces in enumerate(self._layout.shards):
            answer = self.client.ask_shard(Ask.STATES, shard).wait()
            states: list[dict[str, Any]] = [{} for _ in pieces]
            names = json.loads(unpack_text(answer.parts[0]))
            for (number, name, tensor), value in zip(names, answer.parts[1:], strict=True):
                states[number][name] = value if tensor else value.item()
            for piece, state in zip(pieces, states, strict=True):
                found.setdefault(piece.param, []).append((piece, state))
        for number, pieces_of in found.items():
            joined = join_states(pieces_of, self._params[number])
            if joined:
                self._optimizer_of(number).state[self._params[number]] = joined
        try:
            yield
        finally:
            for optimizer in self._run.optimizers:
                optimizer.state.clear()

    def _optimizer_of(self, number: int) -> Optimizer:
        param = self._params[number]
        return next(o for o in self._run.optimizers for g in o.param_groups if any(p is param for p in g["params"]))

    def state_dict(self) -> dict[str, Any]:
        """Return counts; weights and the optimizer's state are where every checkpoint has them."""
        return {"step": self._run.step, "version": self._copies.version(0)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin anew from the weights and the optimizer's state that were restored."""
        self._run.engine.step = state.get("step", self._run.engine.step)
        version = state.get("version", self._run.engine.step)  # none where another strategy wrote it
        self._copies = Copies(self._layout.shards, self._params, len(self.members.groups), version)
        self.client.lock = self._copies.lock
        self._sequence = 0
        self._taken.clear()
        self._begin()


def owned_params(model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[list[Parameter], list[Owner]]:
    """Return the model's trained parameters that an optimizer steps, and whose they are."""
    of = {
        id(p): Owner(i, j)
        for i, optimizer in enumerate(optimizers)
        for j, group in enumerate(optimizer.param_groups)
        for p in group["params"]
    }
    params = [p for p in model.parameters() if p.requires_grad and id(p) in of]
    return params, [of[id(p)] for p in params]


def share_work(group: Sequence[int], shards: int, size: int) -> dict[int, list[int]]:
    """Return which members of a group push and pull which shards: hosts their own, the rest evenly.

    Example:
        >>> share_work([0, 1], shards=4, size=4)
        {0: [0, 2], 1: [1, 3]}
    """
    work: dict[int, list[int]] = {rank: [] for rank in group}
    hosts = {shard: first_host(shard, shards, size) for shard in range(shards)}
    for shard, host in sorted(hosts.items(), key=lambda each: (each[1] not in work, each[0])):
        least = min(group, key=lambda rank: len(work[rank]))
        work[host if host in work else least].append(shard)
    return {rank: sorted(found) for rank, found in work.items()}


def open_mailbox(run: Run, name: str) -> Mailbox:
    """Make the mailbox of a run, counted with its gradients (collective)."""
    if not isinstance(run.control, HasMailbox):
        raise UserError(f"a {type(run.control).__name__} has no mailboxes, which compute groups need")
    box = run.control.mailbox(name)
    if isinstance(run.gradients, Metered) and not isinstance(run.control, Metered):
        return run.gradients.rewrap_mailbox(box)
    return box
