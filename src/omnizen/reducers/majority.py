"""One bit a value to its owner, and back what most ranks voted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from omnizen.kernels.fields import pack_fields, unpack_fields
from omnizen.protocols import Comm, Later, Pending
from omnizen.reducers import wire_cost
from omnizen.reducers.bases import Memoryless
from omnizen.reducers.contribution import checked
from omnizen.spans import span
from omnizen.types import Contribution, Dense, Reduced, Sparsity, State, Step, Traffic

VOTE_BITS = 2
"""Bits of an outcome: against, undecided or for."""


@dataclass(frozen=True, slots=True)
class Majority(Memoryless):
    """Let ranks vote on the sign of each element; the value is -1, 1, or 0 where the votes are even.

    Each rank counts the votes on an n-th of the elements: one bit an element goes to the owners, two come back, on
    any number of ranks. The result is no average: its magnitude is 1 whatever the gradient is, so the step size is
    that of every element (1e-4 rather than 0.1), and error feedback cannot be put around it. A value that is not a
    number votes for; 0 does too.

    Reference: Bernstein, Wang, Azizzadenesheli and Anandkumar, "signSGD: Compressed Optimisation for Non-Convex
    Problems", ICML 2018, algorithm 3.
    """

    name: ClassVar[str] = "signsgd"
    takes: ClassVar[tuple[type[Contribution], ...]] = (Dense,)
    agrees: ClassVar[bool] = True
    conserves: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    def start(self, x: Contribution, state: State, comm: Comm, step: Step) -> Pending[Reduced]:
        """Begin to send votes; outcomes are sent when the result is waited for."""
        checked(x, self.takes, self.name)
        with span("encode", step.name):
            flat = x.values.detach().reshape(-1)
            parts = (flat < 0).tensor_split(comm.size)
            push = comm.all_to_all([[pack_fields(part.to(torch.uint8), 1)] for part in parts])

        def finish() -> Reduced:
            received = push.wait()
            with span("decode", step.name):
                count = parts[comm.rank].numel()
                against = sum(unpack_fields(votes, 1, count) for (votes,) in received)
                outcome = torch.sign(comm.size - 2 * torch.as_tensor(against)) + 1
            pulled = comm.all_gather([pack_fields(outcome.to(torch.uint8), VOTE_BITS)]).wait()
            with span("decode", step.name):
                signs: list[Tensor] = [
                    unpack_fields(outcomes, VOTE_BITS, part.numel()) - 1
                    for part, (outcomes,) in zip(parts, pulled, strict=True)
                ]
                value = torch.cat(signs).to(x.values.dtype).view(x.values.shape)
            return Reduced(Dense(value), None, state)

        return Later(finish)

    def traffic(self, pattern: Sparsity, size: int) -> Traffic:
        """Predict the bytes and rounds at each rank."""
        elements = pattern.num_rows * pattern.width
        part = -(-elements // size)
        votes, outcomes = -(-part // 8), -(-part * VOTE_BITS // 8)
        others = size - 1
        return wire_cost.scheduled(others * votes, others * votes, 1, size) + wire_cost.scheduled(
            others * outcomes, others * outcomes, 1, size
        )


def majority() -> Majority:
    """Make the vote on signs; see ``Majority``."""
    return Majority()
