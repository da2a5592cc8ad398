"""Coded rows arrive bit for bit as plain ones do, in fewer bytes."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.threads import run_ranks
from omnizen.laws.reducer import busiest, check_reducer, measured_pattern, zipf_contributions
from omnizen.laws.trial import Trials
from omnizen.types import Sparse, Sparsity, Step

PLAIN = {
    "agsparse-golomb": "agsparse", "agsparse-packed": "agsparse",
    "zen-cyclic-golomb": "zen-cyclic-coo", "zen-cyclic-packed": "zen-cyclic-coo",
}  # fmt: skip


def averages(name, inputs):
    def body(comm):
        reducer, x = catalog.reducer(name), inputs[comm.rank]
        return reducer.start(x, reducer.init(x), comm, Step(0, name="x")).wait().value

    return run_ranks(len(inputs), body)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("size", [2, 5])
def test_averages_are_those_of_the_plain_scheme_bit_for_bit(name, size):
    inputs = zipf_contributions(Sparse, size, num_rows=5_000, rows=300, width=3)
    inputs[0] = Sparse(inputs[0].indices[:0], inputs[0].values[:0], 5_000)  # a rank without rows
    for coded, plain in zip(averages(name, inputs), averages(PLAIN[name], inputs), strict=True):
        assert torch.equal(coded.indices, plain.indices)
        assert torch.equal(coded.values, plain.values)


@pytest.mark.parametrize(("name", "less"), list(zip(PLAIN, (0.64, 0.59, 0.66, 0.6), strict=True)))
def test_elements_at_one_per_cent_take_so_much_less(name, less):
    """Eight workers; averages lie denser than a worker's own elements, so their places take fewer bits."""
    pattern = Sparsity(1_000_000, 1, 0.01, {1: 1.0, 8: 3.0})
    plain = catalog.reducer(PLAIN[name]).traffic(pattern, 8).rx_bytes
    assert catalog.reducer(name).traffic(pattern, 8).rx_bytes < less * plain


def test_a_coded_pull_never_takes_more_than_one_with_a_bit_a_row():
    for density in (0.001, 0.01, 0.1, 0.3):
        pattern = Sparsity(640_000, 1, density, {1: 1.0, 4: min(2.5, 1 / density)})
        coded, bits = (
            catalog.reducer(name).traffic(pattern, 4).rx_bytes
            for name in ("zen-cyclic-golomb", "zen-cyclic-bitmap")
        )
        assert coded < bits


@pytest.mark.parametrize("name", PLAIN)
def test_rows_in_runs_take_what_is_predicted(name):
    """The prediction is for random rows; runs take a little more bits a row, within the common tolerance."""
    runs = torch.arange(10)[:, None] * 30_000 + torch.arange(900)
    inputs = [Sparse((runs + start).view(-1), torch.randn(9_000, 1), 300_000) for start in (20_000, 20_500)]
    reducer = catalog.reducer(name)
    seen = busiest(Trials(reducer).run("runs", lambda rank: inputs[rank], 2))
    assert seen.rx_bytes == pytest.approx(reducer.traffic(measured_pattern(inputs), 2).rx_bytes, rel=0.03)


@pytest.mark.parametrize(("name", "values"), [("agsparse-golomb", "float16"), ("zen-cyclic-packed", "bfloat16")])
def test_laws_hold_with_16_bits(name, values):
    reducer = catalog.reducer(name, values=values)
    assert not reducer.exact
    assert {v.law: v.reason for v in check_reducer(reducer, sizes=(1, 3)) if not v.held} == {}
