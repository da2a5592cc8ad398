"""The points of the synchronisation benchmark: density, skew, width, workers, rate of the links."""

from __future__ import annotations

from itertools import product
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Skew = Literal["uniform", "zipf"]
SKEWS: tuple[Skew, ...] = ("uniform", "zipf")
Kind = Literal["row-sparse", "element-sparse"]


class Point(BaseModel):
    """One synthetic gradient on one set of links.

    Args:
        hosts: workers.
        rate_mbit: rate of each link.
        rows: rows of the tensor (elements when kind is ``element-sparse``).
        width: elements in a row.
        density: fraction of rows that one worker touches.
        skew: ``uniform``, or ``zipf``: rows drawn by rank-frequency, so that workers share the frequent ones.
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


RATES_MBIT = (25.0, 100.0)
"""Slow enough that the links, not the two cores that eight hosts share here, decide how long a reduction takes."""


def full_grid() -> list[Point]:
    """Return the 40 points that the planner's pick is judged on."""
    points = []
    shapes = {"row-sparse": (20_000, 64), "element-sparse": (640_000, 1)}
    for hosts, rate, shape in product((4, 8), RATES_MBIT, shapes.values()):
        for density, skew in product((0.01, 0.1), SKEWS):
            points.append(_point(hosts, rate, shape, density, skew))
    for rate, shape, density in product(RATES_MBIT, shapes.values(), (0.01, 0.1)):
        points.append(_point(2, rate, shape, density, "zipf"))
    return points


def _point(hosts: int, rate: float, shape: tuple[int, int], density: float, skew: Skew) -> Point:
    return Point(hosts=hosts, rate_mbit=rate, rows=shape[0], width=shape[1], density=density, skew=skew)


def by_links(points: list[Point]) -> dict[tuple[int, float], list[Point]]:
    """Group points that can be measured in one start of the lab."""
    groups: dict[tuple[int, float], list[Point]] = {}
    for point in points:
        groups.setdefault((point.hosts, point.rate_mbit), []).append(point)
    return groups
