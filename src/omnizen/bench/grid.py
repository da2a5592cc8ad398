"""The points of the synchronisation benchmark: density, skew, width, workers, rate of the links."""

from __future__ import annotations

from collections.abc import Container
from itertools import product
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Skew = Literal["uniform", "zipf", "blocky"]
SKEWS: tuple[Skew, ...] = ("uniform", "zipf", "blocky")
Kind = Literal["row-sparse", "element-sparse"]


class Point(BaseModel):
    """One synthetic gradient on one set of links.

    Args:
        hosts: workers.
        rate_mbit: rate of each link.
        rows: rows of the tensor (elements when kind is ``element-sparse``).
        width: elements in a row.
        density: fraction of rows that one worker touches.
        skew: ``uniform``; ``zipf``: rows drawn by rank-frequency, so that workers share the frequent ones; or
            ``blocky``: uniform, in runs of neighbouring rows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: int = Field(ge=2, le=64)
    rate_mbit: float = Field(gt=0)
    rows: int = Field(ge=1)
    width: int = Field(ge=1)
    density: float = Field(gt=0, le=1)
    skew: Skew

    @property
    def kind(self) -> Kind:
        """Kind of gradient, as the planner and the catalogue name it."""
        return "element-sparse" if self.width == 1 else "row-sparse"

    @property
    def name(self) -> str:
        """A short text for rows and tables."""
        return f"{self.rows}x{self.width} d={self.density:g} {self.skew}"


HOSTS = (2, 4, 8, 16)
RATES_MBIT = (50.0, 100.0, 1000.0)
DENSITIES = (0.001, 0.01, 0.1, 0.3)
SHAPES = ((20_000, 64), (640_000, 1))
"""Rows of an embedding, and single elements; both tensors take 5.12 MB."""


def full_grid(hosts: Container[int] = HOSTS, rates_mbit: Container[float] = RATES_MBIT) -> list[Point]:
    """Return the 144 points that the planner's pick is judged on, or those on some of the links.

    Every density and skew on every kind of links, as rows on one half of the links and as elements on the other:
    the two kinds change places from point to point like the colours of a chessboard.
    """
    axes = product(enumerate(HOSTS), enumerate(RATES_MBIT), enumerate(DENSITIES), enumerate(SKEWS))
    points = []
    for (i, n), (j, rate), (k, density), (m, skew) in axes:
        rows, width = SHAPES[(i + j + k + m) % 2]
        if n in hosts and rate in rates_mbit:
            points.append(Point(hosts=n, rate_mbit=rate, rows=rows, width=width, density=density, skew=skew))
    return points


def by_links(points: list[Point]) -> dict[tuple[int, float], list[Point]]:
    """Group points that can be measured in one start of the lab."""
    groups: dict[tuple[int, float], list[Point]] = {}
    for point in points:
        groups.setdefault((point.hosts, point.rate_mbit), []).append(point)
    return groups
