"""Error feedback, warm-up and choice by size."""

from dataclasses import dataclass

import pytest
import torch

from omnizen import catalog
from omnizen.comm.threads import run_ranks
from omnizen.errors import Incompatible, UserError
from omnizen.protocols import Ready
from omnizen.reducers.by_size import by_size
from omnizen.reducers.contribution import as_tensor, from_dense_rows
from omnizen.reducers.dense import dense
from omnizen.reducers.feedback import RESIDUAL, feedback
from omnizen.reducers.state import from_state_dict, state_dict
from omnizen.reducers.warmup import warmup
from omnizen.types import Dense, Reduced, Sparse, State, Step, Traffic

LOSSY = [(name, values) for name in catalog.schemes("row-sparse") for values in ("float16", "bfloat16")]


def gradient(rank, n, kind=Sparse):
    rng = torch.Generator().manual_seed(100 * rank + n)
    rows = torch.randperm(20, generator=rng)[:9].sort().values
    x = Sparse(rows, torch.randn(9, 3, generator=rng), 20)
    return x if kind is Sparse else Dense(x.to_dense())


def train(reducer, steps, size=3, kind=Sparse, states=None, first=0, grads=gradient):
    """Return, for each rank, the values of all steps and the last state."""

    def body(comm):
        state = reducer.init(grads(comm.rank, 0, kind)) if states is None else states[comm.rank]
        values = []
        for n in range(first, first + steps):
            reduced = reducer.start(grads(comm.rank, n, kind), state, comm, Step(n)).wait()
            state = reduced.state
            values.append(as_tensor(reduced.value))
        return values, state

    return run_ranks(size, body)


def whole_average(steps, size=3):
    return sum(as_tensor(gradient(r, n)) for r in range(size) for n in range(steps)) / size


@pytest.mark.parametrize(("name", "values"), LOSSY)
def test_feedback_loses_nothing(name, values):
    """What arrived and what the residuals hold together is everything that was contributed."""
    steps, size = 12, 3
    for kind in (Dense, Sparse) if name == "dense" else (Sparse,):
        ranks = train(feedback(catalog.reducer(name, values=values)), steps, size, kind)
        arrived = sum(ranks[0][0])
        owed = sum(state.slots[RESIDUAL] for _, state in ranks) / size
        assert owed.abs().max() > 0
        torch.testing.assert_close(arrived + owed, whole_average(steps), rtol=0, atol=1e-5)


def test_feedback_is_closer_than_no_feedback():
    steps = 40
    constant = lambda rank, n, kind: gradient(rank, 0, Dense)  # noqa: E731
    expected = steps * whole_average(1)
    with_it = sum(train(feedback(dense("bfloat16")), steps, grads=constant)[0][0])
    without = sum(train(dense("bfloat16"), steps, grads=constant)[0][0])
    assert (with_it - expected).abs().max() < 0.1 * (without - expected).abs().max()


def test_the_residual_is_applied_when_its_row_is_touched_again():
    reducer = feedback(Cut())
    (((first, second, third), state),) = train(reducer, 3, size=1, grads=rows_0_then_1_then_0)
    assert first.view(-1).tolist() == [0.5, 0.0]
    assert second.view(-1).tolist() == [0.0, 0.5]
    assert third.view(-1).tolist() == [0.75, 0.0]  # half of 1 and of the 0.5 left from the first step
    assert state.slots[RESIDUAL].view(-1).tolist() == [0.75, 0.5]


def test_decay_shrinks_the_old_residual():
    reducer = feedback(Cut(), decay=0.5)
    (((_, _, third), _),) = train(reducer, 3, size=1, grads=rows_0_then_1_then_0)
    assert third.view(-1).tolist() == [0.625, 0.0]
    with pytest.raises(UserError, match=r"decay must be in \(0, 1\], got 0"):
        feedback(Cut(), decay=0)


def rows_0_then_1_then_0(rank, n, kind):
    return Sparse(torch.tensor([n % 2]), torch.ones(1, 1), 2)


@dataclass(frozen=True)
class Cut:
    """Sends half of each value, on one rank."""

    conserves: bool = True
    agrees: bool = True
    exact: bool = False
    name: str = "cut"
    takes: tuple = (Sparse,)

    def init(self, like):
        return State()

    def start(self, x, state, comm, step):
        half = Sparse(x.indices, x.values / 2, x.num_rows)
        return Ready(Reduced(half, half, state))

    def traffic(self, pattern, size):
        return Traffic(0, 0, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [Dense, Sparse])
def test_a_bad_value_is_seen_once_and_does_not_poison_the_residual(bad, kind):
    def grads(rank, n, kind):
        x = gradient(rank, 0, kind)
        if n == 0 and rank == 0:
            x.values[1 if kind is Sparse else int(gradient(0, 0).indices[1]), 1] = bad
        return x

    name = "dense" if kind is Dense else "zen-coo"
    ranks = train(feedback(catalog.reducer(name, values="float16")), 3, kind=kind, grads=grads)
    first, second, third = ranks[0][0]
    assert not torch.isfinite(first).all()
    assert torch.isfinite(second).all()
    assert torch.isfinite(third).all()
    for _, state in ranks:
        assert torch.isfinite(state.slots[RESIDUAL]).all()


def test_huge_values_are_clamped_and_the_rest_is_kept():
    huge = lambda rank, n, kind: Dense(torch.tensor([1e5]))  # noqa: E731
    (values, state), *_ = train(feedback(dense("float16")), 1, size=2, kind=Dense, grads=huge)
    assert values[0].item() == 65504
    assert state.slots[RESIDUAL].item() == 1e5 - 65504


def test_feedback_refuses_what_does_not_conserve():
    with pytest.raises(Incompatible, match="ErrorFeedback needs a reducer that conserves its input; cut does not"):
        feedback(Cut(conserves=False))


@pytest.mark.parametrize("name", ["dense", "zen-coo", "sparcml"])
def test_five_steps_save_load_five_steps_equal_ten(name, tmp_path):
    reducer = warmup(catalog.reducer(name), feedback(catalog.reducer(name, values="bfloat16")), steps=2)
    straight = train(reducer, 10)
    half = train(reducer, 5)
    loaded = []
    for rank, (_, state) in enumerate(half):
        torch.save(state_dict(state), tmp_path / f"{rank}.pt")
        loaded.append(from_state_dict(torch.load(tmp_path / f"{rank}.pt", weights_only=True)))
    resumed = train(reducer, 5, states=loaded, first=5)
    for (all_values, state), (early, _), (late, resumed_state) in zip(straight, half, resumed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(all_values, early + late, strict=True))
        assert state_dict(state).keys() == state_dict(resumed_state).keys()
        for key, tensor in state.slots.items():
            assert torch.equal(tensor, resumed_state.slots[key])


def test_one_large_batch_equals_four_micro_batches_with_one_compression():
    """Micro-batch gradients are added before they are contributed, so feedback sees one gradient a step."""
    calls = []

    class Counted(Cut):
        def start(self, x, state, comm, step):
            calls.append(step.n)
            return super().start(x, state, comm, step)

    def updates(micro_batches):
        rng = torch.Generator().manual_seed(3)
        data, target = torch.randn(8, 4, generator=rng), torch.randn(8, 1, generator=rng)
        weight = torch.zeros(4, 1, requires_grad=True)
        reducer = feedback(Counted())
        state = reducer.init(from_dense_rows(weight))

        def body(comm):
            nonlocal state
            for n in range(3):
                weight.grad = None
                for x, y in zip(data.chunk(micro_batches), target.chunk(micro_batches), strict=True):
                    (((x @ weight - y) ** 2).mean() / micro_batches).backward()
                reduced = reducer.start(from_dense_rows(weight.grad), state, comm, Step(n)).wait()
                state = reduced.state
                with torch.no_grad():
                    weight.sub_(0.1 * as_tensor(reduced.value))
            return weight.detach().clone()

        return run_ranks(1, body)[0]

    torch.testing.assert_close(updates(4), updates(1), rtol=1e-6, atol=1e-7)
    assert calls == [0, 1, 2] * 2


def test_warmup_changes_at_its_step():
    reducer = warmup(dense(), Cut(), steps=2)
    ((values, _),) = train(reducer, 4, size=1, grads=rows_0_then_1_then_0)
    assert [v.max().item() for v in values] == [1.0, 1.0, 0.5, 0.5]
    assert reducer.takes == (Sparse,)
    assert not reducer.exact
    with pytest.raises(UserError, match="steps must not be negative"):
        warmup(dense(), dense(), steps=-1)


def test_by_size_chooses_by_the_bytes_of_the_whole_tensor():
    reducer = by_size(dense(), Cut(), at_bytes=100)
    small, large = Sparse(torch.tensor([0]), torch.ones(1, 1), 24), Sparse(torch.tensor([0]), torch.ones(1, 1), 25)
    run = lambda x: run_ranks(1, lambda comm: reducer.start(x, reducer.init(x), comm, Step(0)).wait())[0]  # noqa: E731
    assert isinstance(run(small).value, Dense)
    assert run(large).value.values.item() == 0.5
    with pytest.raises(UserError, match="at_bytes must not be negative"):
        by_size(dense(), dense(), at_bytes=-1)


def test_wrappers_refuse_reducers_with_nothing_in_common():
    with pytest.raises(Incompatible, match="BySize needs a kind of contribution that both take"):
        by_size(Cut(takes=(Dense,)), Cut())
    with pytest.raises(Incompatible, match="Warmup needs a kind of contribution that both take"):
        warmup(Cut(takes=(Dense,)), Cut(), steps=1)
