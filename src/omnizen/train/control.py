"""The small message of each step: who is where, and how much each rank's contribution weighs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from omnizen.errors import Disagreement, UnevenInputs
from omnizen.protocols import Comm, Pending
from omnizen.types import Parts

Told = tuple[tuple[float, ...], ...]
"""Numbers of each rank, in rank order."""


class Turn(IntEnum):
    """What a rank is about to do."""

    STEP = 0
    LOADER_ENDED = 1
    CLOSED = 2
    ROUND = 3
    FLUSH = 4
    DEAL = 5
    SAVE = 6
    LOAD = 7
    MASK = 8


SAYS = {
    Turn.STEP: "takes step {step}",
    Turn.LOADER_ENDED: "has no batch left after {step} {counted}",
    Turn.CLOSED: "closed its run after {step} {counted}",
    Turn.ROUND: "ends round {step} of its local steps",
    Turn.FLUSH: "wants the newest weights (run.flush, run.save or run.close) after {step} {counted}",
    Turn.DEAL: "begins to read samples after {step} {counted}",
    Turn.SAVE: "saves a checkpoint after {step} {counted}",
    Turn.LOAD: "loads a checkpoint after {step} {counted}",
    Turn.MASK: "prunes or takes masks after {step} {counted}",
}


@dataclass(frozen=True, slots=True)
class Word:
    """One rank's message.

    Args:
        step: optimizer steps done.
        weight: samples (or what the user set) behind the gradient.
        buffers: whether the model's buffers changed since the last step.
        told: numbers for whoever listens on all ranks.
        lr: one number that differs where learning rates do.
        odd: whether the loss is no number.
    """

    turn: Turn
    step: int
    weight: float = 1.0
    buffers: bool = False
    told: tuple[float, ...] = ()
    lr: float = 0.0
    odd: bool = False


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks know after the message.

    Args:
        factor: what this rank's gradient is multiplied by before the ranks' average.
        share: the same for values that are averaged whatever the reduction (buffers).
        buffers: whether any rank's buffers changed.
        mean_weight: of all ranks.
        told: each rank's numbers.
        odd: ranks whose loss is no number.
    """

    factor: float
    share: float
    buffers: bool
    mean_weight: float
    told: Told = ()
    odd: tuple[int, ...] = ()


def say(word: Word, comm: Comm) -> Pending[list[Parts]]:
    """Send a word to all ranks; waits for nobody."""
    row = [word.turn, word.step, word.weight, word.buffers + 2 * word.odd, word.lr, *word.told]
    return comm.all_gather([torch.tensor(row, dtype=torch.float64, device=comm.device)])


def agree(
    word: Word, said: Pending[list[Parts]], rank: int, *, summed: bool = False, counted: str = "steps"
) -> Agreement:
    """Hear all ranks' words; every rank comes to the same agreement or to the same error.

    A rank's mean-loss gradient counts ``w_r n / sum(w)``: the average over ranks is then the gradient of the mean
    over all samples. The factor is exactly 1 when all weights are equal.

    Args:
        said: what ``say`` returned for this rank's word.
        summed: the loss is a sum, so the union's gradient is the sum of the ranks' gradients.
        counted: what the words' ``step`` counts.

    Raises:
        UnevenInputs: when ranks are not at the same step, names them.
        Disagreement: when their learning rates differ.
    """
    rows = [parts[0].tolist() for parts in said.wait()]
    if any(r[:2] != rows[0][:2] for r in rows):
        groups: dict[str, list[int]] = {}
        for member, (turn, step, *_) in enumerate(rows):
            groups.setdefault(SAYS[Turn(int(turn))].format(step=int(step), counted=counted), []).append(member)
        told = "; ".join(f"{_ranks(members)} {what}" for what, members in groups.items())
        raise UnevenInputs(
            f"rank {rank} cannot go on, the ranks took different numbers of {counted}: {told}. {_advice(rows)}"
        )
    other = next((member for member, r in enumerate(rows) if r[4] != rows[0][4]), None)
    if other is not None:
        raise Disagreement(
            f"learning rates differ between rank 0 and rank {other} at step {word.step}, so their weights would "
            "drift apart; schedule by numbers that all ranks share (ReduceLROnPlateau by the ranks' mean loss)"
        )
    weights = [r[2] for r in rows]
    total, size = sum(weights), len(weights)
    mean = weights[0] if min(weights) == max(weights) else total / size
    share = word.weight / mean if mean else 1.0
    odd = tuple(place for place, r in enumerate(rows) if int(r[3]) & 2)
    factor = share if not summed else (float(size) if word.weight or not total else 0.0)
    return Agreement(factor, share, any(int(r[3]) & 1 for r in rows), mean, tuple(tuple(r[5:]) for r in rows), odd)


def _advice(rows: list[list[float]]) -> str:
    meetings = {float(turn) for turn in (Turn.SAVE, Turn.LOAD, Turn.MASK)}
    if any(turn in meetings for turn, *_ in rows):
        return "Call run.save, run.load, run.prune and run.use_masks on all ranks, after the same step"
    return "Give each rank as many batches as the others, or let run.prepare() share the data out"


def _ranks(members: list[int]) -> str:
    return f"rank {members[0]}" if len(members) == 1 else "ranks " + ", ".join(map(str, members))
