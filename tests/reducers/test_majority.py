"""The vote on signs."""

import pytest
import torch

from omnizen import catalog
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import Incompatible
from omnizen.types import Dense, Step


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shape", [(7, 3), (1,), (), (0,)])
def test_the_majority_decides_and_an_even_vote_is_zero(size, shape):
    def own(rank):
        return torch.randn(shape, generator=torch.Generator().manual_seed(rank))

    votes = sum(torch.where(own(rank) < 0, -1.0, 1.0) for rank in range(size))
    reducer = catalog.reducer("signsgd")
    body = lambda comm: reducer.start(Dense(own(comm.rank)), reducer.init(None), comm, Step(0)).wait().value  # noqa: E731
    for value in run_ranks(size, body):
        assert torch.equal(value.values, votes.sign())


def test_three_bits_an_element_travel_on_any_number_of_ranks():
    reducer = catalog.reducer("signsgd")

    def body(comm):
        reducer.start(Dense(torch.ones(8000)), reducer.init(None), comm, Step(0)).wait()
        return comm.reading().traffic.rx_bytes

    for size in (2, 4, 8):
        assert run_ranks(size, body, wrap=Metered)[0] == (size - 1) / size * 8000 * 3 / 8 + 2 * 8 * (size - 1)


def test_no_feedback_around_a_vote():
    with pytest.raises(
        Incompatible, match="ErrorFeedback needs a reducer that conserves its input; signsgd does not"
    ):
        catalog.reducer("feedback(signsgd)")
