"""Errors that users meet; each says what was given, what is allowed and what to do."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

_INSTALLED = sysconfig.get_paths()
_OTHERS = (str(Path(__file__).parent), *(_INSTALLED[key] for key in ("stdlib", "purelib", "platlib")), "<frozen ")
"""How the files of code begin that is not the user's own."""
MOST_SHOWN = 12
"""Choices that an error lists where something else lists them all."""
LIKE = 0.6
"""From this likeness on (``difflib``'s, 0 to 1) a name is suggested for another; below, it was hardly meant."""
LISTS_METHODS = "omnizen cite --list"
"""The command that lists the catalogue."""


class OmnizenError(Exception):
    """Base of every error that this package raises on purpose."""


class UserError(OmnizenError, ValueError):
    """A setting, file or input that cannot be used as given."""


class Incompatible(UserError):
    """Two parts that were put together cannot work together."""

    def __init__(self, wrapper: str, wrapped: str, needs: str, suggestion: str = "") -> None:
        hint = f" ({suggestion})" if suggestion else ""
        super().__init__(f"{wrapper} needs {needs}; {wrapped} does not offer it{hint}")


class CommError(OmnizenError, RuntimeError):
    """A failure on a link; carries who waited for whom, when and for how long."""

    def __init__(
        self, what: str, *, rank: int, peer: int | None, step: int | None, elapsed_s: float, limit_s: float
    ) -> None:
        self.rank, self.peer, self.step = rank, peer, step
        self.elapsed_s, self.limit_s = elapsed_s, limit_s
        other = "its peers" if peer is None else f"rank {peer}"
        at = "outside a step" if step is None else f"at step {step}"
        super().__init__(f"rank {rank} {what} {other} {at} after {elapsed_s:.1f} s (limit {limit_s:.0f} s)")


class PeerLost(CommError):
    """A peer ended, or its connection broke."""

    def __init__(self, *, rank: int, peer: int | None, step: int | None, elapsed_s: float, limit_s: float) -> None:
        super().__init__("lost", rank=rank, peer=peer, step=step, elapsed_s=elapsed_s, limit_s=limit_s)


class PeerTimeout(PeerLost):
    """A peer did not answer within the time limit."""

    def __init__(self, *, rank: int, peer: int | None, step: int | None, elapsed_s: float, limit_s: float) -> None:
        CommError.__init__(
            self, "waited in vain for", rank=rank, peer=peer, step=step, elapsed_s=elapsed_s, limit_s=limit_s
        )


class TakenForLost(OmnizenError, RuntimeError):
    """The other ranks heard nothing from this one for so long that they went on without it."""


class NoAnswer(OmnizenError, RuntimeError):
    """A rank was asked something and what answers there raised an error; says which."""


class Disagreement(UserError):
    """Ranks that must agree (model, plan, layout, shapes) do not; names the first difference."""


class NotFinite(OmnizenError, ArithmeticError):
    """Weights of a rank hold NaN or infinity; says whose and where."""


class NotFiniteWarning(UserWarning):
    """A gradient that a lossy scheme was to shorten holds NaN or infinity."""


class NotWrittenWarning(UserWarning):
    """What a run writes down cannot be written any more; training goes on."""


class UnevenInputs(OmnizenError, RuntimeError):
    """One rank ran out of batches, or took another number of steps, than the rest."""


def of_user_code(error: BaseException) -> str:
    """Return what an error in code of the user's own was, and the innermost line of that code, in one line.

    Example:
        >>> try:
        ...     int("two")
        ... except ValueError as error:
        ...     of_user_code(error).split(" (")[0]
        "ValueError: invalid literal for int() with base 10: 'two'"
    """
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OTHERS)] or frames
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError):  # whose message names the line
        place = ""
    return f"{type(error).__name__}{': ' if message else ''}{message}{place}"


def near(given: str, names: Sequence[str]) -> str:
    """Return the name that somebody who wrote another one may have meant; empty where none is like it.

    Example:
        >>> near("zen-bitmp", ["zen-coo", "zen-bitmap"]), near("nosuch", ["stc", "dense"])
        ('zen-bitmap', '')
    """
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault(name.lower(), name)
    wanted = given.lower()
    if close := difflib.get_close_matches(wanted, plain, n=1, cutoff=LIKE):
        return plain[close[0]]
    # Short names: one wrong letter is already half of "l1" for "l2".
    one_off = (n for n in plain if len(n) == len(wanted) > 1 and sum(map(str.__ne__, n, wanted)) == 1)
    return plain.get(next(one_off, ""), "")


def nearest(given: object, allowed: Iterable[object], *, listed_by: str = "", also: Iterable[str] = ()) -> str:
    """Return a sentence that names the choice nearest to what was given, and then what is allowed.

    Args:
        listed_by: what lists all choices, such as a command; with it, a long list is cut after ``MOST_SHOWN``.
        also: other names of these choices, which may be meant but are not listed.

    Example:
        >>> nearest("dens", ["dense", "zen"])
        "got 'dens'; did you mean 'dense'? allowed: dense, zen"
    """
    names = [str(a) for a in allowed]
    close = near(str(given), [*names, *also])
    hint = f"did you mean {close!r}? " if close else ""
    shown = names if not listed_by or len(names) <= MOST_SHOWN + 1 else names[:MOST_SHOWN]
    more = f" and {len(names) - len(shown)} more ({listed_by} lists all)" if len(shown) < len(names) else ""
    return f"got {given!r}; {hint}allowed: {', '.join(shown) or 'nothing'}{more}"
