"""Equal models on all ranks at the start: compare by digest, send only what differs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from omnizen.errors import Disagreement
from omnizen.measure.texts import gather_texts
from omnizen.protocols import Comm

PIECE_BYTES = 8 * 2**20
"""Tensors travel in pieces, so that each wait is short and on a slow link no time limit passes unjustly."""
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Started:
    """What the start took.

    Args:
        names: tensors that differed from rank 0 on some rank.
        sent_bytes: bytes of tensors that this rank sent on.
    """

    names: tuple[str, ...]
    sent_bytes: int


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent or other buffers by name, shared ones once."""
    return {name: p.detach() for name, p in [*model.named_parameters(), *model.named_buffers()]}


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a contiguous CPU copy or view of a tensor's bytes, ``[numel * itemsize]`` uint8."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def compare_signatures(model: nn.Module, comm: Comm) -> None:
    """Check that all ranks have the same tensors.

    Raises:
        Disagreement: on all ranks, naming the first tensor that differs and who has what.
    """
    lines = [
        f"{name} {list(t.shape)} {str(t.dtype).removeprefix('torch.')}"
        f"{'' if getattr(p, 'requires_grad', False) or name not in params else ' frozen'}"
        for params in [dict(model.named_parameters())]
        for name, t in named_tensors(model).items()
        for p in [params.get(name)]
    ]
    texts = gather_texts(comm, "\n".join(lines))
    if all(text == texts[0] for text in texts):
        return
    columns = [text.split("\n") for text in texts]
    for i in range(max(map(len, columns))):
        found = [column[i] if i < len(column) else "nothing" for column in columns]
        if len(set(found)) > 1:
            other = next(r for r, line in enumerate(found) if line != found[0])
            raise Disagreement(
                f"the ranks' models differ: tensor {i} is {found[0]!r} on rank 0 and {found[other]!r} on rank "
                f"{other}; build the same model on every rank"
            )
    raise AssertionError("texts differ but no line does")


def equalise(model: nn.Module, comm: Comm) -> Started:
    """Make every rank's tensors equal to rank 0's.

    Each rank's digests (blake2b, 16 bytes a tensor) are compared; only differing tensors are sent, down a binomial
    tree. A rank passes on only what its child lacks: what it did not lack itself equals rank 0's already.
    """
    compare_signatures(model, comm)
    tensors = list(named_tensors(model).items())
    if comm.size == 1 or not tensors:
        return Started((), 0)
    own = b"".join(hashlib.blake2b(as_bytes(t).numpy().data, digest_size=DIGEST_BYTES).digest() for _, t in tensors)
    digests = torch.frombuffer(bytearray(own), dtype=torch.uint8).view(-1, DIGEST_BYTES).to(comm.device)
    everyone = [parts[0] for parts in comm.all_gather([digests]).wait()]
    lacks = [(theirs != everyone[0]).any(1).nonzero().view(-1).tolist() for theirs in everyone]
    sent_bytes, reach = 0, 1
    while reach < comm.size:
        for source in range(min(reach, comm.size - reach)):
            dest = source + reach
            for i in lacks[dest] if comm.rank in (source, dest) else []:
                sent_bytes += _send(tensors[i][1], source, dest, comm)
        reach *= 2
    return Started(tuple(tensors[i][0] for i in sorted(set().union(*lacks))), sent_bytes)


def _send(tensor: Tensor, source: int, dest: int, comm: Comm) -> int:
    data, like = as_bytes(tensor), [torch.empty(0, dtype=torch.uint8, device=comm.device)]
    if comm.rank == source:
        for piece in data.split(PIECE_BYTES):
            comm.exchange({dest: [piece.to(comm.device)]}, [], like).wait()
        return data.numel()
    pieces = [comm.exchange({}, [source], like).wait()[source][0].cpu() for _ in data.split(PIECE_BYTES)]
    with torch.no_grad():
        tensor.copy_(torch.cat(pieces).view(tensor.dtype).view(tensor.shape))
    return 0
