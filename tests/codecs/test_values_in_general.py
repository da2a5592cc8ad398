"""What holds for every codec of values, whatever its method."""

import pytest
import torch

from omnizen import catalog
from omnizen.types import Dense, Packed, Sparsity, Step

NAMES = [n for n in catalog.CODECS if (catalog.codec(n).takes, catalog.codec(n).gives) == (Dense, Packed)]

ALONE = [n for n in NAMES if not catalog.codec(n).summable]  # payloads that add up keep a bad value otherwise


def through(codec, x, n=0, name=""):
    return codec.decode(codec.encode(Dense(x), Step(n, shared_seed=1, name=name))).values


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NAMES)
def test_any_shape_and_memory_format(name):
    codec = catalog.codec(name)
    last = gaussian(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for x in (gaussian(()), gaussian(0), gaussian(0, 3), gaussian(1, 1), last, gaussian(4, 6).t(), gaussian(1001)):
        back = through(codec, x)
        assert back.shape == x.shape
        assert torch.equal(back, through(codec, x.contiguous()))


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_largest_numbers_of_a_type_stay_finite(name, dtype):
    x = torch.full((700,), torch.finfo(dtype).max, dtype=dtype)
    x[::2] *= -1
    back = through(catalog.codec(name), x)
    assert back.dtype == dtype
    assert torch.isfinite(back).all()
    assert ((back.sign() == x.sign()) | (back == 0)).all()


@pytest.mark.parametrize("name", ALONE)
def test_what_is_not_finite_arrives_and_leaves_its_neighbours_as_they_were(name):
    codec, x = catalog.codec(name), gaussian(40, 30)
    places = torch.tensor([0, 513, 1199])
    x.view(-1)[places] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    back = through(codec, x)
    assert torch.equal(back.view(-1)[places].isnan(), torch.tensor([True, False, False]))
    assert back.view(-1)[places[1:]].tolist() == [float("inf"), float("-inf")]
    without = through(codec, torch.where(torch.isfinite(x), x, 0))
    others = torch.isfinite(x)
    assert torch.equal(back[others], without[others])


@pytest.mark.parametrize("name", NAMES)
def test_choices_follow_from_the_step_and_leave_the_global_generator_alone(name):
    codec, x = catalog.codec(name), gaussian(500)
    before = torch.get_rng_state()
    first = through(codec, x, 3, "a")
    assert torch.equal(first, through(codec, x, 3, "a"))
    if codec.unbiased and not codec.exact:
        assert not torch.equal(first, through(codec, x, 4, "a"))
        assert not torch.equal(first, through(codec, x, 3, "a/1"))  # as reducers name the step by rank
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (129, 8), (512, 4), (1000, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bytes_are_as_predicted(name, shape, dtype):
    codec = catalog.codec(name)
    made = codec.encode(Dense(gaussian(*shape).to(dtype)), Step(0))
    low, high = codec.nbytes(Sparsity(*shape, density=1.0, itemsize=dtype.itemsize))
    assert low <= made.nbytes <= high


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_taken_and_no_graph_is_kept(name):
    x = gaussian(5).requires_grad_()
    made = catalog.codec(name).encode(Dense(x), Step(0))
    assert not any(stream.requires_grad for stream in made.streams)
