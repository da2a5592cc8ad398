"""Small texts between ranks: device facts, plans."""

from __future__ import annotations

import torch

from omnizen.protocols import Comm


def gather_texts(comm: Comm, text: str) -> list[str]:
    """Give every rank's text to every rank, in rank order (collective).

    Example:
        >>> from omnizen.comm.threads import run_ranks
        >>> run_ranks(2, lambda comm: gather_texts(comm, f"rank {comm.rank}"))[1]
        ['rank 0', 'rank 1']
    """
    raw = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8).to(comm.device)
    gathered = comm.all_gather([raw if text else raw[:0]]).wait()
    return [bytes(part.cpu().tolist()).decode() for (part,) in gathered]
