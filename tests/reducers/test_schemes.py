"""The lossy schemes of the catalogue: bytes on the wire, and training that gets where dense training gets."""

import pytest
import torch

from omnizen import catalog
from omnizen.catalog_lossy import LOSSY
from omnizen.comm.meter import Metered
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.plan.search import make_plan
from omnizen.types import Dense, Layout, Sparse, Step
from tests.plan.builders import job

LAYOUT = Layout.of([("weight", (60, 50)), ("bias", (500,))])


def test_grace_s_names_are_there_and_marked():
    names = {*BITS, "stc", "signsgd"}
    assert names <= set(LOSSY)
    for name in names:
        assert catalog.REDUCERS[name].lossy
        assert "dense" in catalog.REDUCERS[name].kinds
        assert not catalog.reducer(name).exact
    assert not names & set(catalog.schemes("dense"))
    assert names <= set(catalog.schemes("dense", lossy=True))


BITS = {  # of an element, one rank's payload
    "topk": 0.64, "randomk": 0.32, "random-block": 0.32, "def-random-block": 0.5, "dgc": 0.64, "sbc": 0.081,
    "onebit": 1.0, "qsgd": 4.06, "terngrad": 1.6, "natural": 9.0, "wangni": 1.6,
}  # fmt: skip


@pytest.mark.parametrize("name", BITS)
def test_bits_of_an_element_on_the_wire(name):
    reducer, numel = catalog.reducer(name), 100_000

    def body(comm):
        x = Dense(torch.randn(numel, generator=torch.Generator().manual_seed(comm.rank)))
        reducer.start(x, reducer.init(x), comm, Step(0, 1, "w")).wait()
        return comm.reading().traffic.rx_bytes

    for received in run_ranks(2, body, wrap=Metered):  # one payload from the other, or one by all-reduce
        assert 8 * received / numel == pytest.approx(BITS[name], rel=0.1)


def losses(name, steps, lr, **settings):
    """Least squares on four ranks; returns the loss before and after."""
    reducer = catalog.reducer(name, **settings)

    def body(comm):
        rng = torch.Generator().manual_seed(5)
        truth = torch.randn(LAYOUT.numel, generator=rng)
        own = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(10 + comm.rank))
        x = torch.zeros(LAYOUT.numel)
        state = reducer.init(Dense(x, LAYOUT))
        first = float(((x - truth) ** 2).mean())
        for n in range(steps):
            grad = (x - truth) + 0.1 * own * (-1) ** n
            done = reducer.start(Dense(grad, LAYOUT), state, comm, Step(n, 1, "bucket")).wait()
            state, value = done.state, done.value
            x -= lr * (value.to_dense().view(-1) if isinstance(value, Sparse) else value.values)
        return first, float(((x - truth) ** 2).mean())

    return run_ranks(4, body)[0]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dense", {}),
        ("topk", {"density": 0.1}),
        ("randomk", {"density": 0.1}),
        ("random-block", {"density": 0.1}),
        ("def-random-block", {"density": 0.1, "momentum": 0.5}),
        ("dgc", {"density": 0.1, "momentum": 0.5}),
        ("sbc", {"density": 0.1, "momentum": 0.5}),
        ("stc", {"density": 0.1}),
        ("onebit", {}),
        ("qsgd", {}),
        ("terngrad", {}),
        ("natural", {}),
        ("wangni", {"density": 0.5}),
    ],
)
def test_training_converges(name, settings):
    drawn = name.startswith(("random", "def-random"))  # what chance leaves out comes later, so take shorter steps
    first, last = losses(name, 120, 0.05, **settings) if drawn else losses(name, 40, 0.1, **settings)
    assert last < 0.1 * first


def test_the_planner_takes_a_lossy_scheme_only_when_it_is_named():
    from omnizen.measure.facts import GradientFacts

    facts = job(4, gradients=[GradientFacts(name="w", kind="dense", shape=(1000, 1000), dtype="float32")])
    assert make_plan(facts).tensors[0].scheme == "dense"
    short, whole = make_plan(facts, schemes=["dense", "onebit"]), make_plan(facts)
    assert short.tensors[0].scheme == "onebit"
    assert short.prediction.rx_bytes_per_step == pytest.approx(3 / 32 * 4e6, rel=0.01)
    assert whole.prediction.rx_bytes_per_step == 1.5 * 4e6


def test_unknown_settings_and_densities_are_refused():
    with pytest.raises(UserError, match="density is the fraction that is kept"):
        catalog.reducer("topk", density=0)
    with pytest.raises(UserError, match="did you mean 'topk'"):
        catalog.reducer("top-k")
