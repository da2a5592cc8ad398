"""What a run refuses: one sentence that says what to do, on all ranks, and never other numbers without a word."""

from __future__ import annotations

import copy
import socket

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset

from omnizen.errors import Disagreement, OmnizenError, UnevenInputs, UserError
from omnizen.measure.around import lab_facts
from omnizen.train.init import init
from omnizen.train.run import Run
from tests.train.helpers import alone, assert_close, make_run, on_ranks, run_ranks, sgd, weights

MODEL = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double()
X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def on_all_ranks(work, match: str, error: type[OmnizenError] = UserError, size: int = 2) -> list[str]:
    """Run ``work(run)`` on all ranks, each of which must raise."""

    def body(comm) -> str:
        with pytest.raises(error, match=match) as found:
            work(make_run(comm))
        return str(found.value)

    return run_ranks(size, body)


def prepared(run: Run, **options):
    model = copy.deepcopy(MODEL)
    return model, run.prepare(model, sgd(model), plan="dense", **options)[1]


def loss(model, x=X):
    return model(x).square().mean()


class HasDdp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = DistributedDataParallel.__new__(DistributedDataParallel)
        nn.Module.__init__(self.inner)
        self.inner.module = nn.Linear(2, 2)


def with_buffer(tensor: torch.Tensor) -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("kept", tensor)
    return model


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.LazyLinear(3), "weight has no shape yet; run one forward pass"),
        (nn.Linear(2, 2, device="meta"), "weight is on the meta device"),
        (nn.Linear(2, 2).to(torch.float8_e5m2), "weight is float8_e5m2; gradients of these types"),
        (nn.ModuleDict({"t": nn.Embedding(3, 2, max_norm=1.0)}), "t has max_norm, with which"),
        (HasDdp(), "inner is a DistributedDataParallel"),
        (with_buffer(torch.eye(2).to_sparse()), "kept is sparse_coo; parameters and buffers are compared and sent"),
        (with_buffer(torch.ones(1).expand(3)), "kept is expanded, so that its elements share memory"),
        ([nn.Linear(2, 2)], "takes a torch.nn.Module, got list"),
    ],
)
def test_models(model, said: str) -> None:
    optimizer = sgd(MODEL)
    on_all_ranks(lambda run: run.prepare(model, optimizer, plan="dense"), said)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ([], "got an empty list"),
        (None, "got NoneType"),
        ([sgd(MODEL), "adam"], "got SGD, str"),
        (torch.optim.lr_scheduler.ConstantLR(sgd(MODEL)), "got ConstantLR"),
        (sgd(nn.Linear(3, 2)), r"SGD holds a parameter of shape \[2, 3\] that is not in the model"),
    ],
)
def test_optimizers(optimizer, said: str) -> None:
    on_all_ranks(lambda run: run.prepare(MODEL, optimizer, plan="dense"), said)


@pytest.mark.parametrize(
    "options", [{"plan": "zen-co"}, {"plan": "none.toml"}, {"values": 8}, {"reduction": None}, {"plan": 5}]
)
def test_a_wrong_choice_on_one_rank_is_heard_by_all(options) -> None:
    def work(run: Run) -> None:
        model = copy.deepcopy(MODEL)
        run.prepare(model, sgd(model), **({"plan": "dense"} | (options if run.rank else {})))

    first, second = on_all_ranks(work, "got|there is no file")
    assert first == f"rank 1 cannot go on, so no rank does: UserError: {second}"


def rows(count: int, **options) -> DataLoader:
    return DataLoader(TensorDataset(X[:count]), **options)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (rows(4, batch_size=2), None, "4 samples.* on rank 0, 'loader: none' on rank 1"),
        (rows(4, batch_size=2), [X], "'loader: left as it is' on rank 1"),
        (rows(4, batch_size=2), rows(5, batch_size=2), "4 samples.*5 samples"),
        (rows(4, batch_size=2), rows(4, batch_size=1), "batch_size 2.*batch_size 1"),
        (rows(4, batch_size=2), rows(4, batch_size=2, shuffle=True), "sequential.*random"),
    ],
)
def test_loaders_that_differ(first, second, said: str) -> None:
    on_all_ranks(lambda run: prepared(run, loader=second if run.rank else first), said, Disagreement)


class NoLength(Dataset):
    def __getitem__(self, i):
        return X[i]


@pytest.mark.parametrize(
    ("loader", "said"),
    [(5, "iterable of batches, got int"), (DataLoader(NoLength()), "a NoLength, has no __len__")],
)
def test_loaders_that_are_none(loader, said: str) -> None:
    on_all_ranks(lambda run: prepared(run, loader=loader), said)


def test_too_few_samples() -> None:
    on_all_ranks(lambda run: prepared(run, loader=rows(1)), "1 samples cannot be shared by 2 ranks")


def test_a_loader_that_is_left_aside() -> None:
    def work(run: Run) -> None:
        loader = rows(4, batch_size=2)
        model, _ = prepared(run, loader=loader)
        for (x,) in loader:
            loss(model, x).backward()

    on_all_ranks(work, "iterate over that one")


def test_a_data_set_that_changes() -> None:
    def work(run: Run) -> None:
        data = list(X)
        model = copy.deepcopy(MODEL)
        _, _, loader = run.prepare(model, sgd(model), DataLoader(data, batch_size=2), plan="dense")
        list(loader)
        data.append(X[0])
        list(loader)

    on_all_ranks(work, "had 6 samples .* and has 7 now")


def test_steps_with_gradients_of_no_sync_only() -> None:
    def work(run: Run) -> None:
        model, optimizer = prepared(run)
        with run.no_sync():
            loss(model).backward()
        optimizer.step()

    on_all_ranks(work, r"leave the last backward of a step outside run.no_sync\(\)")


@pytest.mark.parametrize("before", [0, 1])
def test_steps_with_gradients_that_backward_did_not_make(before: int) -> None:
    def work(run: Run) -> None:
        model, optimizer = prepared(run)
        for _ in range(before):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
        for p, grad in zip(model.parameters(), torch.autograd.grad(loss(model), model.parameters()), strict=True):
            p.grad = grad
        optimizer.step()

    on_all_ranks(work, r"0.weight.grad is this rank's own.*use loss.backward\(\)")


def test_steps_with_parameters_that_came_later() -> None:
    def work(run: Run) -> None:
        model, optimizer = prepared(run)
        head = nn.Linear(1, 1).double()
        optimizer.add_param_group({"params": head.parameters()})
        head(model(X)).mean().backward()
        optimizer.step()

    on_all_ranks(work, r"parameter of shape \[1, 1\] that was not in the model")


def test_what_users_do_between_backward_and_step_is_not_refused() -> None:
    """Several optimizers, replaced gradients, two steps with the same gradients, a step with zeros."""

    def body(run: Run):
        model = copy.deepcopy(MODEL)
        optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in model]
        run.prepare(model, optimizers, plan="dense")
        for _ in range(2):
            loss(model).backward()
            for p in model.parameters():
                p.grad = p.grad.clamp(-1, 1)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizers[1].step()
        loss(model).backward()
        for _ in range(2):
            optimizers[1].step()
        return weights(model)

    (model,) = (copy.deepcopy(MODEL) for _ in range(1))
    result, other = on_ranks(2, body)
    assert_close(result, other)
    assert not torch.equal(result["0.weight"], weights(model)["0.weight"])


@pytest.mark.parametrize("change", [torch.float32, torch.bfloat16])
def test_a_model_that_is_converted_later(change) -> None:
    def work(run: Run) -> None:
        model, _ = prepared(run)
        model.to(change)
        loss(model, X.to(change)).backward()

    on_all_ranks(work, rf"was torch.float64 .* is now {change}")


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "much", None, torch.ones(2), [1]])
def test_weights_that_are_no_weight(weight) -> None:
    run = make_run(run_ranks(1, lambda comm: comm)[0])
    with pytest.raises(UserError, match="the weight of a batch is a number of 0 or more"):
        run.set_batch_weight(weight)


@pytest.mark.parametrize("norm", [-1.0, float("nan"), None, "a"])
def test_norms_that_are_no_norm(norm) -> None:
    def body(run: Run) -> None:
        prepared(run)
        with pytest.raises(UserError, match="max_norm is a number of 0 or more"):
            run.clip_grad_norm_(norm)

    on_ranks(1, body)


def test_losses_that_are_no_number() -> None:
    run = make_run(run_ranks(1, lambda comm: comm)[0])
    for loss, said in ((torch.ones(2), r"shape \[2\]"), ("low", "'low'"), (None, "None")):
        with pytest.raises(UserError, match=said):
            run.log(loss=loss)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": "60"}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"seed": 1.5}, "seed"),
        ({"seed": None}, "seed"),
        ({"run_dir": __file__}, "run_dir.*cannot be made"),
        ({"run_dir": 3}, "run_dir.*cannot be made"),
    ],
)
def test_settings_of_a_run(options, said: str) -> None:
    with pytest.raises(UserError, match=said):
        init(**options)


def test_a_second_backward_over_a_batch_weighs_like_the_first() -> None:
    """Two optimizers and two losses on batches of 5 and 1: the second backward once counted both ranks alike."""
    shares = [X[:5], X[5:]]

    def body(run: Run):
        model = copy.deepcopy(MODEL)
        _, optimizer, loader = run.prepare(model, sgd(model), [shares[run.rank]], plan="dense")
        for x in loader:
            loss(model, x).backward()
            model(x).sin().mean().backward()
            optimizer.step()
        return weights(model)

    expected = alone(MODEL, [X], lambda m, x: loss(m, x) + m(x).sin().mean())
    for result in on_ranks(2, body):
        assert_close(result, expected)


@pytest.mark.parametrize(
    ("around", "said"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: a whole number from 1 up, got 'two'; torchrun sets it"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: a whole number from 1 up"),
        ({"WORLD_SIZE": "2", "MASTER_PORT": "1"}, "WORLD_SIZE is 2, but RANK, MASTER_ADDR is not set; start by"),
        (
            {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "RANK: a whole number from 0 to 1",
        ),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "x"}, "MASTER_PORT: a whole number"),
        ({"OMNIZEN_LAB": "[]"}, "OMNIZEN_LAB is what `omnizen lab` tells its hosts, in JSON; got '\\[\\]'"),
    ],
)
def test_what_a_launcher_left_half_set(monkeypatch, around, said) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "OMNIZEN_LAB"):
        monkeypatch.delenv(name, raising=False)
    for name, text in around.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(UserError, match=said):
        lab_facts() if "OMNIZEN_LAB" in around else init()


def test_ranks_that_nobody_meets_say_so(monkeypatch) -> None:
    """Rank 1 of 2, and no rank 0 at that port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, text in {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(UserError, match=rf"rank 1 could not meet the other 1 of 2 ranks at 127.0.0.1, port {port}"):
        init(timeout_s=1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda m, rank: torch.optim.SGD(m.parameters(), lr=0.1 * (1 + rank)),
            "lr=0.1.*on rank 0.*lr=0.2.*on rank 1",
        ),
        (lambda m, rank: (torch.optim.SGD, torch.optim.Adam)[rank](m.parameters()), "SGD, group 0.*Adam, group 0"),
        (lambda m, rank: torch.optim.SGD(list(m.parameters())[rank:]), "4 parameters from 0.weight.*3 parameters"),
        (lambda m, rank: [torch.optim.SGD(m.parameters())] * (1 + rank), "'optimizers: 1 groups'.*2 groups"),
    ],
)
def test_optimizers_that_differ(make, says) -> None:
    """Equal gradients do not keep ranks equal whose optimizers take other steps; nothing told of it once."""

    def prepare(run: Run) -> None:
        model = copy.deepcopy(MODEL)
        run.prepare(model, make(model, run.rank), plan="dense")

    on_all_ranks(prepare, says, Disagreement)


def test_optimizers_that_differ_as_devices_do() -> None:
    def prepare(run: Run) -> None:
        model = copy.deepcopy(MODEL)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=bool(run.rank)), plan="dense")

    on_ranks(2, prepare)


@pytest.mark.parametrize(
    ("wish", "other"), [("dense_below", 5), ("scaler", torch.amp.GradScaler("cpu", enabled=False))]
)
def test_wishes_that_differ(wish, other) -> None:
    def prepare(run: Run) -> None:
        model = copy.deepcopy(MODEL)
        run.prepare(model, sgd(model), plan="topk", **({wish: other} if run.rank else {}))

    on_all_ranks(prepare, f"the ranks' settings differ: '{wish}: ", Disagreement)


def test_learning_rates_that_part_later() -> None:
    """As ReduceLROnPlateau does by each rank's own loss: weights once drifted apart without a word."""

    def train(run: Run) -> None:
        model, optimizer = prepared(run)
        for step in range(3):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + run.rank * step)
            loss(model).backward()
            assert step == 0
            optimizer.step()
            optimizer.zero_grad()

    on_all_ranks(train, "learning rates differ between rank 0 and rank 1 at step 1.*share", Disagreement)


def test_the_rank_that_speaks_is_named_as_itself() -> None:
    def body(comm) -> str:
        run = make_run(comm)
        model, _ = prepared(run)
        with pytest.raises(UnevenInputs) as found:
            run.save("nowhere") if run.rank == 2 else loss(model).backward()
        return str(found.value).split(" cannot")[0]

    assert run_ranks(3, body) == ["rank 0", "rank 1", "rank 2"]
