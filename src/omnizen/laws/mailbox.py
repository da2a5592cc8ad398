"""The laws of Mailbox: run them over any launcher of ranks whose comms have mailboxes."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from omnizen.comm.meter import Metered
from omnizen.errors import NoAnswer, PeerLost
from omnizen.laws.comm import DTYPES, Launcher, _require, _same, _sample
from omnizen.laws.law import Law, LawBroken
from omnizen.types import Parts


def _number(value: int) -> Parts:
    return [torch.tensor(value)]


def answers_who_asks(ranks: Launcher) -> None:
    """Each answer goes to who asked, whatever ranks ask at the same time; a rank may ask itself."""
    size = ranks.size

    def body(comm: Any) -> list[list[list[int]]]:
        box = comm.mailbox("law")
        box.serve(lambda source, parts: [torch.tensor([comm.rank, source, int(parts[0])])])
        asked = [[box.ask(dest, _number(i)) for dest in range(size)] for i in range(3)]
        got = [[pending.wait()[0].tolist() for pending in row] for row in asked]
        comm.barrier()
        return got

    for me, got in enumerate(ranks.run(size, body)):
        wanted = [[[dest, me, i] for dest in range(size)] for i in range(3)]
        _require(got == wanted, f"ask: rank {me} got {got}, wanted {wanted}")


def keeps_order(ranks: Launcher) -> None:
    """The questions of one rank to another are answered in the order asked, whatever the order of waiting."""
    size = ranks.size

    def body(comm: Any) -> None:
        box, heard = comm.mailbox("law"), dict.fromkeys(range(size), 0)

        def answer(source: int, parts: Parts) -> Parts:
            heard[source] += 1
            return [torch.tensor([int(parts[0]), heard[source] - 1])]

        box.serve(answer)
        dest = (comm.rank + 1) % size
        asked = [box.ask(dest, _number(i)) for i in range(7)]
        if size == 1:  # a rank that asks itself answers when it waits
            asked = [Waited(p) for p in asked]
        for i in reversed(range(7)):
            got = asked[i].wait()[0].tolist()
            _require(got == [i, i], f"ask: question {got[0]} was answered as number {got[1]}")
        comm.barrier()

    ranks.run(size, body)


class Waited:
    """A pending result that was waited for."""

    def __init__(self, pending: Any) -> None:
        self.value = pending.wait()

    def wait(self) -> Any:
        """Return it."""
        return self.value


def waits_for_nobody_else(ranks: Launcher) -> None:
    """A rank that takes long to answer one question delays neither others' questions to it nor those to others."""
    size = ranks.size
    slow = size - 1

    def body(comm: Any) -> None:
        box, released = comm.mailbox("law"), threading.Event()

        def answer(_: int, parts: Parts) -> Parts:
            if int(parts[0]) == 1 and not released.wait(comm.timeout_s):
                raise LawBroken("ask: a question to a rank that answers another one was not answered")
            if int(parts[0]) == 2:
                released.set()
            return parts

        box.serve(answer)
        held = box.ask(slow, _number(1)) if comm.rank == 0 and slow else None
        for dest in range(size):
            if (comm.rank, dest) != (0, slow):
                box.ask(dest, _number(0)).wait()
        comm.barrier()
        if comm.rank == slow:
            box.ask(slow, _number(2)).wait()
        if held is not None:
            held.wait()
        comm.barrier()

    ranks.run(size, body)


def moves_any_parts(ranks: Launcher) -> None:
    """Parts of any dtype, shape and size, none at all too, travel bit for bit; inputs stay, answers are fresh."""
    size = ranks.size

    def parts(rank: int) -> list[Parts]:
        odd = torch.tensor([0x7FC00123, -0x400000, -0x80000000], dtype=torch.int32).view(torch.float32)
        strided = torch.arange(12.0).view(3, 4).t()
        mixed = [_sample(rank, dtype, i % 3, 2) for i, dtype in enumerate(DTYPES)]
        return [[], [torch.zeros(0, 3)], [*mixed, odd, strided, torch.tensor(True)]]

    def body(comm: Any) -> None:
        box = comm.mailbox("law")
        box.serve(lambda _, got: got)
        dest = (comm.rank + 1) % size
        for wanted in parts(comm.rank):
            given = [p.clone() for p in wanted]
            pending = box.ask(dest, given)
            for p in given:
                p.zero_()
            got = pending.wait()
            _same(got, wanted, "ask")
            for p in got:
                p.zero_()
        (large,) = box.ask(dest, [torch.arange(1_200_000)]).wait()
        _require(torch.equal(large, torch.arange(1_200_000)), "ask: a part of 9.6 MB changed")
        comm.barrier()

    ranks.run(size, body)


def tells_of_errors(ranks: Launcher) -> None:
    """An error where a question is answered is raised where it was asked; the mailbox lives on."""
    size = ranks.size

    def body(comm: Any) -> None:
        box = comm.mailbox("law")

        def answer(_: int, parts: Parts) -> Parts:
            if int(parts[0]) < 0:
                raise ValueError("less than nothing")
            return parts

        box.serve(answer)
        dest = (comm.rank + 1) % size
        try:
            box.ask(dest, _number(-1)).wait()
        except NoAnswer as error:
            told = f"rank {dest} could not answer rank {comm.rank}: ValueError: less than nothing"
            _require(str(error).startswith(told), f"NoAnswer says {error}")
        else:
            raise LawBroken("ask: an error where a question is answered must be raised where it was asked")
        _require(int(box.ask(dest, _number(3)).wait()[0]) == 3, "ask: no answer after an error")
        comm.barrier()

    ranks.run(size, body)


def names_who_is_gone(ranks: Launcher) -> None:
    """Who asks a rank that ended gets a PeerLost that names rank, peer and step; the others go on asking."""
    size = ranks.size
    gone = size - 1

    def body(comm: Any) -> None:
        box = comm.mailbox("law")
        box.serve(lambda _, parts: parts)
        comm.barrier()
        if comm.rank == gone:
            return
        comm.step = 7
        for _ in range(2):
            try:
                while True:  # what it answered before it was gone is right
                    box.ask(gone, _number(1)).wait()
            except PeerLost as error:
                told = (error.rank, error.peer, error.step)
                _require(told == (comm.rank, gone, 7), f"PeerLost names (rank, peer, step) {told}")
                _require(error.elapsed_s <= 2 * comm.timeout_s, f"PeerLost came only after {error.elapsed_s} s")
        _require(box.lost() == {gone}, f"lost names {set(box.lost())} instead of {gone}")
        group = comm.sub(range(gone), "rest")
        for dest in range(gone):
            box.ask(dest, _number(1)).wait()
        group.barrier()

    ranks.run(size, body)


def closes_behind_its_answers(ranks: Launcher) -> None:
    """Answers that are begun when a rank closes its mailbox still arrive."""
    if ranks.size == 1:
        return

    def body(comm: Any) -> None:
        box, begun = comm.mailbox("law"), threading.Event()

        def answer(_: int, parts: Parts) -> Parts:
            begun.set()
            time.sleep(0.2)
            return parts

        box.serve(answer)
        if comm.rank == 1:
            found = int(box.ask(0, _number(5)).wait()[0])
            _require(found == 5, f"close: the answer of a rank that closes was {found}, not 5")
        if comm.rank == 0:
            begun.wait(comm.timeout_s)
            box.close()
        comm.barrier()

    ranks.run(ranks.size, body)


def is_metered(ranks: Launcher) -> None:
    """Each rank's meter counts parts' bytes and 8 for each part, when asking and when answering."""
    size = ranks.size

    def body(comm: Any) -> None:
        metered = Metered(comm)
        box = metered.mailbox("law")
        box.serve(lambda *_: [torch.zeros(3), torch.zeros(2)])
        box.ask((comm.rank + 1) % size, [torch.zeros(10, dtype=torch.float64)]).wait()
        comm.barrier()
        reading = metered.reading()
        got = tuple(sum(n for (verb, _), n in flows.items() if verb == "ask") for flows in (reading.tx, reading.rx))
        each = 88 + 36 if size > 1 else 0
        _require(got == (each, each), f"ask: metered (tx, rx) {got} bytes, the rule says {(each, each)}")

    ranks.run(size, body)


MAILBOX_LAWS: tuple[Law[Launcher], ...] = tuple(
    Law(check.__name__.replace("_", " "), (check.__doc__ or "").strip(), check)
    for check in (
        answers_who_asks,
        keeps_order,
        waits_for_nobody_else,
        moves_any_parts,
        tells_of_errors,
        names_who_is_gone,
        closes_behind_its_answers,
        is_metered,
    )
)
