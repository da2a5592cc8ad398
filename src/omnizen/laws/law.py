"""What a law is, and what comes of checking one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from omnizen.errors import OmnizenError, of_user_code

S = TypeVar("S")
LIMIT_S = 120.0
"""Of one law; those of the catalogue take seconds."""


class LawBroken(OmnizenError):
    """A plug-in does not do what its contract says; the message says where."""


@dataclass(frozen=True, slots=True)
class Law(Generic[S]):
    """One sentence of a contract, with a check that raises ``LawBroken`` where it does not hold.

    Args:
        name: short, for tables and tests.
        statement: the sentence.
        check: takes what is to be checked.
    """

    name: str
    statement: str
    check: Callable[[S], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one law: ``reason`` is empty where it held."""

    law: str
    statement: str
    reason: str

    @property
    def held(self) -> bool:
        """Whether the law held."""
        return not self.reason


def verdicts(laws: Sequence[Law[S]], subject: S, *, limit_s: float = LIMIT_S) -> list[Verdict]:
    """Check all laws; an error of the plug-in's own counts as a broken law and is named.

    A law whose check does not end, or finds out itself that the plug-in does not (``TimeoutError``), is broken, and
    those after it are not tried.

    Args:
        limit_s: limit of one law's check.
    """
    found: list[Verdict] = []
    stuck = ""
    for law in laws:
        reason = f"not tried, as '{stuck}' did not end" if stuck else ""
        error = None if stuck else _checked(law, subject, limit_s)
        if isinstance(error, TimeoutError):
            stuck, reason = law.name, str(error)
        elif error is not None:
            reason = str(error) if isinstance(error, LawBroken) else f"raised {of_user_code(error)}"
        found.append(Verdict(law.name, law.statement, reason))
    return found


def _checked(law: Law[S], subject: S, limit_s: float) -> BaseException | None:
    """Return what a check raised; a plug-in that calls ``sys.exit`` must not pass for a good one."""
    raised: list[BaseException | None] = []

    def work() -> None:
        try:
            law.check(subject)
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name=f"law {law.name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    return raised[0] if raised else TimeoutError(f"did not end within {limit_s:g} s")
