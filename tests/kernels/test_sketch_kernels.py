"""Count sketches: reference, twin and a count in plain Python."""

import numpy as np
import pytest
import torch

from omnizen.kernels.sketch import mean_of, median_of, row_seed, sketch


def mix(h):
    h ^= h >> 16
    h = h * 0x85EBCA6B & 0xFFFFFFFF
    h ^= h >> 13
    h = h * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def counted(flat, rows, columns, seed):
    """A count sketch by its definition, in Python integers."""
    table, guesses = np.zeros((rows, columns)), np.zeros((rows, len(flat)))
    places = {}
    for row in range(rows):
        for i, value in enumerate(flat):
            mixed = mix((i & 0xFFFFFFFF) ^ mix((i >> 32) ^ mix((seed + (row + 1) * 0x9E3779B9) & 0xFFFFFFFF)))
            places[row, i] = (mixed * columns >> 32, 1 - 2 * (mixed & 1))
            table[row, places[row, i][0]] += places[row, i][1] * value
    for (row, i), (column, sign) in places.items():
        guesses[row, i] = table[row, column] * sign
    return table, guesses


@pytest.mark.parametrize("impl", ["reference", "cpu"])
@pytest.mark.parametrize(("rows", "columns", "numel"), [(3, 17, 200), (1, 1, 5), (4, 64, 1023), (3, 8, 0)])
def test_a_sketch_by_its_definition(impl, rows, columns, numel):
    flat = torch.randn(numel, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    table, guesses = counted(flat.tolist(), rows, columns, 77)
    got = sketch.run(impl, flat, rows, columns, 77)
    np.testing.assert_allclose(got.numpy(), table, atol=1e-12)
    lower = np.sort(guesses, 0)[(rows - 1) // 2]
    np.testing.assert_allclose(median_of.run(impl, got, numel, 77).numpy(), lower, atol=1e-12)
    np.testing.assert_allclose(mean_of(got, numel, 77).numpy(), guesses.mean(0), atol=1e-12)


def test_twins_agree_on_what_is_not_finite():
    flat = torch.randn(300, generator=torch.Generator().manual_seed(2))
    flat[[3, 40]] = torch.tensor([float("nan"), float("inf")])
    tables = [sketch.run(impl, flat, 3, 20, 5) for impl in ("reference", "cpu")]
    torch.testing.assert_close(tables[0], tables[1], equal_nan=True)
    medians = [median_of.run(impl, tables[0], 300, 5) for impl in ("reference", "cpu")]
    torch.testing.assert_close(medians[0], medians[1], equal_nan=True)
    assert torch.isnan(medians[0][3])


def test_signs_and_columns_are_even():
    ones = torch.ones(40_000)
    table = sketch(ones, 5, 50, 3)
    assert abs(float(table.sum()) / (5 * 40_000)) < 0.01  # signs cancel
    loads = sketch.run("reference", ones, 5, 50, 3).abs()
    assert float(loads.max()) < 6 * 800**0.5
    assert len({row_seed(3, row) for row in range(5)}) == 5
