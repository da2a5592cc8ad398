"""What many reducers say of themselves in the same words."""

from __future__ import annotations

from typing import ClassVar

from omnizen.protocols import Reducer
from omnizen.types import Contribution, Dense, State


class Memoryless:
    """A reducer that keeps nothing between steps."""

    __slots__ = ()

    def init(self, like: Contribution) -> State:
        """Nothing is kept between steps."""
        del like
        return State()


class WireFormat(Memoryless):
    """A reducer without memory whose only loss is the wire format of values (``codecs.cast``).

    Args:
        values: ``"float32"`` sends values as they are, ``"float16"`` and ``"bfloat16"`` 16 bits of them.
    """

    __slots__ = ()
    values: str
    agrees: ClassVar[bool] = True
    conserves: ClassVar[bool] = True

    @property
    def exact(self) -> bool:
        """Whether values travel as they are."""
        return self.values == "float32"


class Around:
    """A reducer around another one: what it does not say of itself is what the inner one says.

    Args:
        reducer: the inner one.
    """

    __slots__ = ()
    reducer: Reducer

    @property
    def takes(self) -> tuple[type[Contribution], ...]:
        """What the reducer takes."""
        return self.reducer.takes

    @property
    def agrees(self) -> bool:
        """Whether the reducer agrees."""
        return self.reducer.agrees

    @property
    def conserves(self) -> bool:
        """Whether the reducer conserves."""
        return self.reducer.conserves

    @property
    def exact(self) -> bool:
        """Whether the reducer is exact."""
        return self.reducer.exact


class Shortened(Around):
    """A reducer around another one that gives it only some elements of dense tensors."""

    __slots__ = ()

    @property
    def takes(self) -> tuple[type[Contribution], ...]:
        """Dense tensors only; rows are selected already."""
        return (Dense,)

    @property
    def exact(self) -> bool:
        """Never: elements are left out."""
        return False
