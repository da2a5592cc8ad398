"""A case's samples as a data set that ``run.prepare`` can deal out, a whole batch read at once."""

from __future__ import annotations

from typing import TypeVar

from torch.utils.data import DataLoader, Dataset

from omnizen.bench.cases.case import Batch, Case

T = TypeVar("T")


class Dealt(Dataset[Batch]):
    """Every sample of a case once, by number."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def __len__(self) -> int:
        return self._case.num_samples

    def __getitem__(self, index: int) -> Batch:
        return self._case.take([index])

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return a whole batch; a DataLoader calls this where it is there."""
        return self._case.take(indices)


def loader(case: Case, batch: int) -> DataLoader[Batch]:
    """Return a shuffled DataLoader over a case's samples, ``batch`` of them for each rank."""
    return DataLoader(Dealt(case), batch_size=batch, shuffle=True, collate_fn=_as_it_is)


def _as_it_is(batch: T) -> T:
    return batch
