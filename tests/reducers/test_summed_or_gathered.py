"""When payloads that add up pay: Jang, Na, Yoon (2017) ask for compression under which sums need no decoding.

A ring of payloads of C bytes moves ``2 (n - 1) / n C``; an all-gather of payloads of G bytes moves ``(n - 1) G``.
So a payload that adds up may be up to ``n / 2`` times as large as one that does not, before gathering is better.
With the time to encode and decode, compressing by r pays at all while ``t_enc + t_dec < T_comm (1 - 1 / r)``.
"""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.links import Links
from omnizen.comm.meter import Metered
from omnizen.comm.simulated import simulate_ranks
from omnizen.comm.threads import run_ranks
from omnizen.types import Dense, Sparsity, Step

ROWS, WIDTH = 400, 50
PATTERN = Sparsity(ROWS, WIDTH, 1.0)


def x(rank):
    return Dense(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(rank)))


def moved(name, size):
    """Bytes that the busiest rank received."""

    def body(comm):
        reducer = catalog.reducer(name)
        reducer.start(x(comm.rank), reducer.init(x(0)), comm, Step(0, name="x")).wait()
        return comm.reading().traffic.rx_bytes

    return max(run_ranks(size, body, wrap=Metered))


def payload(name, size):
    """Bytes of one rank's payload: a ring moves 2 (n - 1) / n of it."""
    return catalog.reducer(name).traffic(PATTERN, size).rx_bytes * size / (2 * (size - 1))


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8, 12, 16])
@pytest.mark.parametrize(
    ("summed", "gathered"), [("shared-scale", "qsgd"), ("randomk", "topk"), ("powersgd", "qsgd")]
)
def test_the_condition_predicts_who_moves_less(summed, gathered, size):
    one = catalog.reducer(gathered).traffic(PATTERN, 2).rx_bytes  # on two ranks, one payload comes in
    pays = payload(summed, size) < size / 2 * one
    a, b = moved(summed, size), moved(gathered, size)
    assert (a < b) is pays
    predicted = (size / 2 * one) / payload(summed, size)
    assert b / a == pytest.approx(predicted, rel=0.03)


def test_the_cross_over_of_bytes_and_half_bytes():
    """A byte a value that adds up against QSGD's 5 bits: the ring wins from 4 ranks on."""
    wins = [size for size in range(2, 9) if moved("shared-scale", size) < moved("qsgd", size)]
    assert wins == list(range(4, 9))


@pytest.mark.parametrize(("mbit", "name"), [(100, "shared-scale"), (100, "powersgd"), (1000, "shared-scale")])
def test_seconds_on_the_link_shrink_by_the_ratio_of_bytes(mbit, name):
    """Without time to encode, T' = T_comm / r: what remains of the bound once encoding is measured is its price."""
    size = 4
    links = Links.uniform(size, bandwidth_bytes_per_s=mbit / 8 * 1e6, latency_s=1e-6)

    def seconds(scheme):
        def body(comm):
            reducer = catalog.reducer(scheme)
            reducer.start(x(comm.rank), reducer.init(x(0)), comm, Step(0, name="x")).wait()

        return max(simulate_ranks(size, body, links=links).clocks_s)

    dense, thin = (catalog.reducer(scheme).traffic(PATTERN, size).rx_bytes for scheme in ("dense", name))
    assert seconds(name) / seconds("dense") == pytest.approx(thin / dense, rel=0.1)
