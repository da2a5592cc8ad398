"""What a law is, and what comes of checking one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from omnizen.errors import OmnizenError

S = TypeVar("S")


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


def verdicts(laws: Sequence[Law[S]], subject: S) -> list[Verdict]:
    """Check all laws; an error of the plug-in's own counts as a broken law and is named."""
    found = []
    for law in laws:
        reason = ""
        try:
            law.check(subject)
        except LawBroken as broken:
            reason = str(broken)
        except Exception as error:
            reason = f"raised {type(error).__name__}: {error}"
        found.append(Verdict(law.name, law.statement, reason))
    return found
