"""The laws of selectors hold for every row of the catalogue, and each can fail."""

import dataclasses
import re

import pytest
import torch

from omnizen import catalog
from omnizen.laws.selector import SELECTOR_LAWS, check_selector
from omnizen.selectors.top_k import top_k
from omnizen.types import Sparse


def broken_laws(selector):
    return {verdict.law: verdict.reason for verdict in check_selector(selector) if not verdict.held}


@pytest.mark.parametrize("name", catalog.SELECTORS)
def test_every_selector_keeps_every_law(name):
    assert broken_laws(catalog.selector(name)) == {}


@pytest.mark.parametrize("name", catalog.SELECTORS)
@pytest.mark.parametrize("density", [1e-9, 0.3, 1.0])
def test_every_selector_keeps_every_law_at_other_densities(name, density):
    assert broken_laws(catalog.selector(name, density=density)) == {}


@dataclasses.dataclass(frozen=True)
class Broken:
    """A good selector with one thing wrong."""

    density: float = 0.01
    unbiased: bool = False
    name = "broken"

    def select(self, flat, step):
        return top_k(self.density).select(flat, step)

    def keeps(self, numel):
        return top_k(self.density).keeps(numel)


class GivesDense(Broken):
    def select(self, flat, step):
        return flat


class Unsorted(Broken):
    def select(self, flat, step):
        kept = super().select(flat, step)
        return Sparse(kept.indices.flip(0), kept.values.flip(0), kept.num_rows)


class ForgetsTheType(Broken):
    def select(self, flat, step):
        kept = super().select(flat, step)
        return Sparse(kept.indices, kept.values.float(), kept.num_rows)


class Rescales(Broken):
    def select(self, flat, step):
        kept = super().select(flat, step)
        return Sparse(kept.indices, kept.values * 2, kept.num_rows)


class KeepsTooMany(Broken):
    def select(self, flat, step):
        return top_k(min(1.0, 2 * self.density)).select(flat, step)


class HidesNan(Broken):
    def select(self, flat, step):
        return super().select(torch.nan_to_num(flat), step)


class Remembers(Broken):
    """Chooses less the second time."""

    seen: list = []  # noqa: RUF012

    def select(self, flat, step):
        kept = super().select(flat, step)
        self.seen.append(step.n)
        return kept if len(self.seen) % 2 else Sparse(kept.indices + 0, kept.values * 0.5, kept.num_rows)


class ChangesTheTensor(Broken):
    def select(self, flat, step):
        kept = super().select(flat, step)
        flat[kept.indices] = 0
        return kept


class SharesMemory(Broken):
    def select(self, flat, step):
        return Sparse(torch.arange(flat.numel()), flat.view(-1, 1), flat.numel())


BREAKERS = [
    (GivesDense(), "keeps kind shape and type", "gives Tensor, not Sparse"),
    (Unsorted(), "keeps kind shape and type", "not strictly ascending"),
    (ForgetsTheType(), "keeps kind shape and type", "float64 came back as"),
    (Rescales(), "keeps values", "plain: values are not those"),
    (KeepsTooMany(), "keeps as many as it says", "80 of 4000 elements, but keeps.. says 40 to 40"),
    (HidesNan(), "reports what is not finite", "elements that are not finite were left out"),
    (Remembers(unbiased=True), "chooses alike everywhere", "another choice"),
    (ChangesTheTensor(), "leaves input alone", "selecting changed the tensor"),
    (SharesMemory(), "leaves input alone", "changed with the tensor"),
    (Broken(unbiased=True), "is unbiased as declared", "of the magnitude arrives"),
    (Rescales(unbiased=True, density=1.0), "is unbiased as declared", "standard errors"),
]


@pytest.mark.parametrize(("selector", "law", "sentence"), BREAKERS, ids=lambda x: type(x).__name__)
def test_each_law_catches_a_broken_selector(selector, law, sentence):
    reasons = broken_laws(selector)
    assert law in reasons, reasons
    assert re.search(sentence, reasons[law], re.DOTALL), reasons[law]


def test_every_law_has_a_selector_that_breaks_it():
    assert {law for _, law, _ in BREAKERS} == {law.name for law in SELECTOR_LAWS}
