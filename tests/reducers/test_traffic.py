"""Predicted bytes are the papers' formulas, and what the meter sees."""

import pytest
import torch

from omnizen import catalog, spans
from omnizen.laws.reducer import busiest, measured_pattern, zipf_contributions
from omnizen.laws.trial import Trials
from omnizen.reducers.sparcml import hops
from omnizen.types import Sparse, Sparsity

HEADERS = 2 * 8  # two parts, announced by 8 bytes each


def metered(reducer, inputs):
    return busiest(Trials(reducer).run("given", lambda rank: inputs[rank], len(inputs)))


@pytest.mark.parametrize("name", ["zen-coo", "zen-bitmap", "zen-cyclic-coo", "agsparse", "sparcml"])
def test_embedding_sized_gradients_are_predicted_within_3_percent(name):
    """n = 8, 50,000 x 64 rows, density 10 %, rows by Zipf's law."""
    inputs = zipf_contributions(Sparse, 8, num_rows=50_000, rows=5_000, width=64)
    reducer = catalog.reducer(name)
    assert metered(reducer, inputs).rx_bytes == pytest.approx(
        reducer.traffic(measured_pattern(inputs), 8).rx_bytes, rel=0.03
    )


@pytest.mark.parametrize("name", ["zen-coo", "zen-bitmap", "zen-cyclic-coo", "zen-cyclic-bitmap"])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_few_rows_that_fall_unevenly_are_predicted_at_the_busiest_rank(name, size):
    inputs = zipf_contributions(Sparse, size, num_rows=20_000, rows=200, width=64)
    reducer = catalog.reducer(name)
    seen, said = metered(reducer, inputs), reducer.traffic(measured_pattern(inputs), size)
    assert (seen.rx_bytes, seen.tx_bytes) == (
        pytest.approx(said.rx_bytes, rel=1e-3),
        pytest.approx(said.tx_bytes, rel=1e-3),
    )


def test_rows_that_alias_with_the_ranks_are_dear_for_a_cyclic_division_and_not_for_a_hash():
    inputs = [Sparse(torch.arange(0, 4_000, 4), torch.ones(1_000, 8), 4_000)] * 4
    pattern = measured_pattern(inputs)
    even = catalog.reducer("zen-cyclic-coo").traffic(Sparsity(4_000, 8, 0.25, {4: 1.0}), 4)
    assert catalog.reducer("zen-cyclic-coo").traffic(pattern, 4).tx_bytes > 1.9 * even.tx_bytes
    assert catalog.reducer("zen-coo").traffic(pattern, 4).tx_bytes < 1.1 * even.tx_bytes


def test_zen_is_equation_1_for_single_elements():
    n, elements, d, gamma = 16, 1_000_000, 0.01, 7.0
    pattern = Sparsity(elements, 1, d, {1: 1.0, n: gamma})
    whole_bytes = 4 * elements
    expected = (n - 1) / n * (gamma + 1) * 2 * d * whole_bytes
    assert catalog.reducer("zen-coo").traffic(pattern, n).rx_bytes == pytest.approx(
        expected + 2 * (n - 1) * HEADERS, rel=1e-12
    )
    with_bits = (n - 1) / n * (2 * d + gamma * d + 1 / 32) * whole_bytes
    assert catalog.reducer("zen-bitmap").traffic(pattern, n).rx_bytes == pytest.approx(
        with_bits + 2 * (n - 1) * HEADERS, rel=1e-12
    )


def test_zen_generalises_to_rows_by_rho():
    n, rows, width, d, gamma = 8, 50_000, 64, 0.1, 4.0
    pattern = Sparsity(rows, width, d, {1: 1.0, n: gamma})
    rho = 1 + 4 / (4 * width)
    expected = (n - 1) / n * (gamma + 1) * rho * d * 4 * rows * width
    assert catalog.reducer("zen-coo").traffic(pattern, n).tx_bytes == pytest.approx(
        expected + 2 * (n - 1) * HEADERS, rel=1e-12
    )


def test_sparcml_is_equation_2():
    n, elements, d = 8, 1_000_000, 0.01
    pattern = Sparsity(elements, 1, d, {1: 1.0, 2: 1.9, 4: 3.4, 8: 5.5})
    expected = (1.0 + 1.9 + 3.4) * 2 * d * 4 * elements
    traffic = catalog.reducer("sparcml").traffic(pattern, n)
    assert traffic.rx_bytes == pytest.approx(expected + 3 * HEADERS, rel=1e-12)
    assert traffic.rounds == 2 * 3


def test_agsparse_and_dense_are_exact():
    pattern = Sparsity(1000, 8, 0.05)
    assert catalog.reducer("agsparse").traffic(pattern, 4).rx_bytes == 3 * (50 * (4 + 32) + HEADERS)
    assert catalog.reducer("dense").traffic(pattern, 4).rx_bytes == 1.5 * 32_000
    assert catalog.reducer("dense", values="float16").traffic(pattern, 4).rx_bytes == 1.5 * 16_000 + 2 * 3 * 8


@pytest.mark.parametrize("name", catalog.REDUCERS)
def test_one_rank_moves_nothing(name):
    traffic = catalog.reducer(name).traffic(Sparsity(1000, 8, 0.05), 1)
    assert (traffic.rx_bytes, traffic.tx_bytes, traffic.rounds) == (0, 0, 0)


@pytest.mark.parametrize("size", [4, 7])
def test_sparcml_travels_whole_when_rows_would_be_larger(size):
    inputs = zipf_contributions(Sparse, size, num_rows=2_000, rows=1_500, width=1)
    reducer = catalog.reducer("sparcml")
    seen, said = metered(reducer, inputs), reducer.traffic(measured_pattern(inputs), size)
    assert seen.rx_bytes == pytest.approx(said.rx_bytes, rel=1e-9)
    assert seen.rx_bytes <= (size.bit_length() + 1) * (4 * 2_000 + HEADERS)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 17])
def test_hops_bring_every_rank_to_every_rank(size):
    plan = [hops(rank, size) for rank in range(size)]
    held = [{rank} for rank in range(size)]
    for step in range(len(plan[0])):
        sent = [frozenset(ranks) for ranks in held]
        rounded = {sent[rank] for rank in range(size) if plan[rank][step].to is not None or plan[rank][step].last}
        booked = [sent[rank] for rank in range(size) if plan[rank][step].books]
        assert len(booked) == len(rounded)  # exactly one rank answers for each sum that is rounded
        assert set(booked) == rounded
        for rank in range(size):
            hop = plan[rank][step]
            if hop.to is not None:
                assert plan[hop.to][step].source == rank
                assert hop.sends == len(sent[rank])
            if hop.source is not None:
                assert plan[hop.source][step].to == rank
                assert hop.receives == len(sent[hop.source])
                assert hop.receives == size or not sent[rank] & sent[hop.source]
                held[rank] |= sent[hop.source]
    assert all(ranks == set(range(size)) for ranks in held)


def test_encoding_and_decoding_are_recorded():
    inputs = zipf_contributions(Sparse, 2, num_rows=100, rows=10, width=2)
    recorder = spans.Recorder()
    before = spans.listen(recorder)
    try:
        for name in catalog.schemes("row-sparse"):
            metered(catalog.reducer(name), inputs)
            found = {(span.category, span.name) for span in recorder.drain()}
            assert ("encode", "law") in found, name
            assert ("decode", "law") in found or name == "dense", name
    finally:
        spans.listen(before)


def test_the_global_generator_is_not_touched():
    before = torch.get_rng_state()
    metered(catalog.reducer("zen-coo"), zipf_contributions(Sparse, 2, num_rows=100, rows=10, width=2))
    assert torch.equal(torch.get_rng_state(), before)
