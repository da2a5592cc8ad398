"""The laws of Comm: run them over any launcher of ranks to see whether a comm keeps its promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from omnizen.comm.meter import Metered
from omnizen.errors import PeerLost
from omnizen.laws.law import Law, LawBroken, Verdict, verdicts
from omnizen.protocols import Comm
from omnizen.types import Parts

T = TypeVar("T")

SIZES = (1, 2, 3, 5)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
SUMMED = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32)


class Run(Protocol):
    """Runs a body on so many ranks and returns the results in rank order, like ``comm.threads.run_ranks``."""

    def __call__(self, size: int, body: Callable[[Any], T], /) -> list[T]:
        """Run ``body(comm)`` on each rank."""
        ...


@dataclass(frozen=True, slots=True)
class Launcher:
    """What is checked: a way to run ranks, at so many ranks."""

    run: Run
    size: int


def check_comm(run: Run, sizes: Sequence[int] = SIZES) -> list[Verdict]:
    """Check all laws of Comm on what a launcher gives its ranks, at each size.

    Args:
        run: runs a body on so many ranks.
        sizes: numbers of ranks.

    Example:
        >>> from omnizen.comm.threads import run_ranks
        >>> all(verdict.held for verdict in check_comm(run_ranks, sizes=[1, 3]))
        True
    """
    found = [(size, verdict) for size in sizes for verdict in verdicts(COMM_LAWS, Launcher(run, size))]
    return [v if v.held else replace(v, reason=f"with {size} ranks: {v.reason}") for size, v in found]


def _require(kept: bool, what: str) -> None:
    if not kept:
        raise LawBroken(what)


def _bits(x: Tensor) -> bytes:
    return bytes(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist())


def _sample(rank: int, dtype: torch.dtype, *shape: int) -> Tensor:
    """Return numbers that differ by rank and are exact in every dtype."""
    numel = int(torch.Size(shape).numel())
    return ((torch.arange(numel) + 3 * rank) % 7).reshape(shape).to(dtype)


def gathers_uneven_parts(ranks: Launcher) -> None:
    """all_gather gives every rank everybody's parts, of any first dimension, bit for bit, in rank order."""
    size = ranks.size

    def parts(rank: int) -> Parts:
        return [_sample(rank, dtype, (rank + i) % 3, 2) for i, dtype in enumerate(DTYPES)]

    for got in ranks.run(size, lambda comm: comm.all_gather(parts(comm.rank)).wait()):
        for source in range(size):
            _same(got[source], parts(source), "all_gather")


def transposes_uneven_parts(ranks: Launcher) -> None:
    """all_to_all gives rank j what each rank had for j, of any first dimension, bit for bit."""
    size = ranks.size

    def parts(source: int, dest: int) -> Parts:
        return [
            _sample(source + 2 * dest, dtype, (source + dest + i) % 4, *([3] * (i % 2)))
            for i, dtype in enumerate(DTYPES)
        ]

    def body(comm: Comm) -> list[Parts]:
        return comm.all_to_all([parts(comm.rank, dest) for dest in range(size)]).wait()

    for me, got in enumerate(ranks.run(size, body)):
        for source in range(size):
            _same(got[source], parts(source, me), "all_to_all")


def _same(got: Parts, wanted: Parts, verb: str) -> None:
    _require(len(got) == len(wanted), f"{verb}: {len(got)} parts came, {len(wanted)} were sent")
    for g, w in zip(got, wanted, strict=True):
        _require((g.dtype, g.shape) == (w.dtype, w.shape), f"{verb}: {g.dtype}{list(g.shape)} came for {w.dtype}")
        _require(_bits(g) == _bits(w), f"{verb}: bits of a {w.dtype} part changed")


def sums_on_every_rank(ranks: Launcher) -> None:
    """all_reduce gives the sum, in the shape and dtype given, with the same bits on all ranks."""
    size = ranks.size

    def body(comm: Comm) -> list[Tensor]:
        exact = [comm.all_reduce(_sample(comm.rank, dtype, 2, 5).t()) for dtype in SUMMED]
        rounded = comm.all_reduce(torch.linspace(0.1, 1.7, 33) * (comm.rank + 1))
        return [pending.wait() for pending in [*exact, rounded]]

    results = ranks.run(size, body)
    for got in results:
        for x, dtype in zip(got, SUMMED, strict=False):
            wanted = sum(_sample(r, torch.float64, 2, 5) for r in range(size)).t()  # type: ignore[union-attr]
            _require((x.dtype, x.shape) == (dtype, wanted.shape), f"all_reduce: {x.dtype}{list(x.shape)} came")
            _require(torch.equal(x.double(), wanted), f"all_reduce: the sum of {dtype} is wrong")
        _require(_bits(got[-1]) == _bits(results[0][-1]), "all_reduce: ranks got different bits")


def keeps_nan_bits(ranks: Launcher) -> None:
    """NaN payloads, infinities and negative zeros travel bit for bit."""
    size = ranks.size
    odd = torch.tensor([0x7FC00123, -0x400000, 0x7F800000, -0x800000, -0x80000000], dtype=torch.int32)

    def body(comm: Comm) -> list[Parts]:
        return comm.all_gather([odd.view(torch.float32)]).wait()

    for got in ranks.run(size, body):
        for (part,) in got:
            _require(torch.equal(part.view(torch.int32), odd), "all_gather: NaN bits changed")


def leaves_inputs_alone(ranks: Launcher) -> None:
    """Inputs, contiguous or not, are not changed; results are fresh; later changes of inputs do not reach them."""
    size = ranks.size

    def body(comm: Comm) -> None:
        base = _sample(comm.rank, torch.float32, 4, 6)
        before = base.clone()
        strided = base[:, ::2]
        pending = [comm.all_reduce(strided), comm.all_gather([strided]), comm.all_to_all([[strided]] * size)]
        _require(torch.equal(base, before), "an input was changed while its call was under way")
        kept = strided.clone()
        base.zero_()
        gathered, transposed = pending[1].wait(), pending[2].wait()
        pending[0].wait()
        for verb, got in (("all_gather", gathered), ("all_to_all", transposed)):
            mine = got[comm.rank][0]  # type: ignore[index]
            _require(torch.equal(mine, kept), f"{verb}: a result changed with its input")
            mine.add_(1)
        _require(not base.any(), "a result shares memory with an input")

    ranks.run(size, body)


def moves_empty_parts(ranks: Launcher) -> None:
    """Calls without parts, with empty parts and with empty tensors are calls like others."""
    size = ranks.size

    def body(comm: Comm) -> None:
        empty = torch.zeros(0, 3)
        _require(comm.all_gather([]).wait() == [[]] * size, "all_gather of no parts must give none")
        got = comm.all_to_all([[empty]] * size).wait()
        _require([list(p.shape) for (p,) in got] == [[0, 3]] * size, "all_to_all: empty parts lost their shape")
        _require(list(comm.all_reduce(empty).wait().shape) == [0, 3], "all_reduce: an empty tensor lost its shape")
        _require(comm.exchange({}, [], [empty]).wait() == {}, "exchange with nobody must give nothing")
        comm.barrier()

    ranks.run(size, body)


def exchanges_with_neighbours(ranks: Launcher) -> None:
    """Exchange moves parts between the named ranks only; one may send without receiving."""
    size = ranks.size

    def body(comm: Comm) -> list[dict[int, Parts]]:
        after, before = (comm.rank + 1) % size, (comm.rank - 1) % size
        like = [torch.zeros(0, 2, dtype=torch.int64)]
        ring = comm.exchange({after: [_sample(comm.rank, torch.int64, comm.rank, 2)]}, [before], like)
        to_first = comm.exchange(
            {0: [_sample(comm.rank, torch.int64, 1, 2)]} if comm.rank else {},
            list(range(1, size)) if comm.rank == 0 else [],
            like,
        )
        return [ring.wait(), to_first.wait()]

    for me, (ring, to_first) in enumerate(ranks.run(size, body)):
        before = (me - 1) % size
        _require(list(ring) == [before], f"exchange: rank {me} heard from {list(ring)} instead of {before}")
        _same(ring[before], [_sample(before, torch.int64, before, 2)], "exchange")
        _require(sorted(to_first) == (list(range(1, size)) if me == 0 else []), "exchange: wrong sources")


def makes_groups(ranks: Launcher) -> None:
    """Sub gives the members a comm in the order asked for, and None to the others; groups do not mix."""
    size = ranks.size
    wanted = list(range(size - 1, -1, -2))

    def body(comm: Comm) -> list[int] | None:
        group = comm.sub(wanted, "some")
        if group is None:
            comm.barrier()
            return None
        got = [int(part) for (part,) in group.all_gather([torch.tensor([comm.rank])]).wait()]
        got.append(group.rank)
        comm.barrier()
        group.close()
        return got

    for me, got in enumerate(ranks.run(size, body)):
        if me not in wanted:
            _require(got is None, f"sub: rank {me} is no member and must get None")
        else:
            _require(got == [*wanted, wanted.index(me)], f"sub: members {wanted}, got {got}")


def names_who_was_lost(ranks: Launcher) -> None:
    """When a rank ends, those who wait for it get a PeerLost that names rank, peer and step, within the limit."""
    size = ranks.size
    lost = size - 1

    def body(comm: Comm) -> None:
        comm.step = 7
        comm.barrier()
        if comm.rank == lost:
            return
        try:
            comm.all_gather([torch.zeros(2)]).wait()
        except PeerLost as error:
            told = (error.rank, error.peer, error.step)
            _require(told == (comm.rank, lost, 7), f"PeerLost names (rank, peer, step) {told}")
            _require(error.elapsed_s <= 2 * comm.timeout_s, f"PeerLost came only after {error.elapsed_s} s")
        else:
            raise LawBroken("all_gather with a rank that ended must raise PeerLost")

    ranks.run(size, body)


def is_metered_by_the_rule(ranks: Launcher) -> None:
    """The meter's bytes and rounds are those of the metering rule."""
    size = ranks.size

    def body(comm: Comm) -> None:
        metered = Metered(comm)
        others = size - 1
        x = torch.zeros(6, 5)
        cases: list[tuple[str, Callable[[], Any], float, float, int]] = [
            (
                "all_reduce",
                metered.all_reduce(x).wait,
                2 * others / size * 120,
                2 * others / size * 120,
                2 * others,
            ),
        ]
        rows = [r + 1 for r in range(size)]
        mine, rest = rows[comm.rank], sum(rows) - rows[comm.rank]
        gather = metered.all_gather([torch.zeros(mine, 3), torch.zeros(mine, dtype=torch.int64)])
        rounds = size if others else 0
        cases.append(("all_gather", gather.wait, others * (20 * mine + 16), 20 * rest + 16 * others, rounds))
        across = metered.all_to_all([[torch.zeros(dest + 1)] for dest in range(size)])
        cases.append(("all_to_all", across.wait, 4 * rest + 8 * others, others * (4 * mine + 8), rounds))
        for verb, wait, tx, rx, wanted_rounds in cases:
            wait()
            reading = metered.reading()
            got = tuple(sum(n for (of, _), n in flows.items() if of == verb) for flows in (reading.tx, reading.rx))
            _require(got == (tx, rx), f"{verb}: metered (tx, rx) {got} bytes, the rule says {(tx, rx)}")
            _require(reading.rounds_by_verb[verb] == wanted_rounds, f"{verb}: wrong number of rounds")

    ranks.run(size, body)


COMM_LAWS: tuple[Law[Launcher], ...] = tuple(
    Law(check.__name__.replace("_", " "), (check.__doc__ or "").strip(), check)
    for check in (
        gathers_uneven_parts,
        transposes_uneven_parts,
        sums_on_every_rank,
        keeps_nan_bits,
        leaves_inputs_alone,
        moves_empty_parts,
        exchanges_with_neighbours,
        makes_groups,
        names_who_was_lost,
        is_metered_by_the_rule,
    )
)
