"""Folders that cannot be written or read: one sentence on all ranks, and nothing of the user's is lost."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from omnizen.errors import Disagreement, UnevenInputs, UserError
from omnizen.sparse.masks import Masks
from omnizen.train.run import Run
from tests.train.helpers import assert_equal, make_run, on_ranks, run_ranks, sgd

MODEL = nn.Linear(2, 2)


def begin(run: Run, optimizer=sgd, loader=None, model: nn.Module = MODEL) -> nn.Module:
    mine = copy.deepcopy(model)
    run.prepare(mine, optimizer(mine), loader, plan="dense")
    return mine


def refused_on_all(folder: Path, call: str, size: int = 2, **options) -> list[str]:
    def work(comm) -> str:
        run = make_run(comm)
        begin(run, **options)
        with pytest.raises(UserError) as found:
            getattr(run, call)(folder(comm.rank) if callable(folder) else folder)
        run.close()  # the ranks are still in step
        return str(found.value)

    return run_ranks(size, work)


@pytest.mark.parametrize("end", ["", "/", "/."])
def test_a_folder_by_any_name(tmp_path: Path, end: str) -> None:
    for _ in range(2):  # the second replaces the first
        on_ranks(2, lambda run: (begin(run), run.save(f"{tmp_path}/kept{end}")))
        assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == [
            "rank0.pt",
            "rank1.pt",
            "shared",
            "shared.pt",
        ]
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for said in refused_on_all(tmp_path, "save"):
        assert "'thesis.tex', which is no part of a checkpoint" in said
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert all("is a file" in said for said in refused_on_all(tmp_path / "file", "save"))
    said = refused_on_all(tmp_path / "file" / "inside", "save")
    assert all("cannot be written" in text for text in said)
    assert "rank 0 cannot go on, so no rank does" in said[1]


def test_a_rank_that_cannot_write(tmp_path: Path, monkeypatch) -> None:
    kept = torch.save

    def save(what, path):
        if "rank1" in str(path):
            raise OSError(28, "No space left on device")
        kept(what, path)

    monkeypatch.setattr(torch, "save", save)
    said = refused_on_all(tmp_path / "kept", "save")
    assert all("No space left on device" in text for text in said)
    assert not (tmp_path / "kept").exists()


def damage(folder: Path, name: str) -> None:
    path = folder / name
    data = bytearray(path.read_bytes())
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("name", ["shared.pt", "rank1.pt", "shared/.metadata", "shared/__0_0.distcp"])
def test_a_damaged_file_is_refused_by_all_ranks(tmp_path: Path, name: str) -> None:
    def saved(run: Run) -> None:
        begin(run)
        run.save(tmp_path / "kept")

    on_ranks(2, saved)
    damage(tmp_path / "kept", name)
    for said in refused_on_all(tmp_path / "kept", "load"):
        assert "damaged" in said


def test_another_program_s_files_are_refused(tmp_path: Path) -> None:
    for name in ("shared.pt", "rank0.pt", "rank1.pt"):
        torch.save({"epoch": 3, "state_dict": MODEL.state_dict()}, tmp_path / name)
    for said in refused_on_all(tmp_path, "load"):
        assert "no checkpoint of this job" in said


def test_a_missing_rank_file_is_heard_by_all(tmp_path: Path) -> None:
    on_ranks(2, lambda run: (begin(run), run.save(tmp_path / "kept")))
    (tmp_path / "kept" / "rank1.pt").unlink()
    said = refused_on_all(tmp_path / "kept", "load")
    assert all("no complete checkpoint for rank 1" in text for text in said)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    on_ranks(2, lambda run: (begin(run, adam), run.save(tmp_path / "kept")))
    for said in refused_on_all(tmp_path / "kept", "load"):
        assert "optimizers Adam; this run has SGD" in said


def numbers(count: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.ones(count, 2)), batch_size=2)


def test_another_data_set_or_none_is_refused(tmp_path: Path) -> None:
    on_ranks(2, lambda run: (begin(run, loader=numbers(8)), run.save(tmp_path / "kept")))
    assert all(
        "8 samples, this loader has 9" in s for s in refused_on_all(tmp_path / "kept", "load", loader=numbers(9))
    )
    assert all("no loader that can go there" in s for s in refused_on_all(tmp_path / "kept", "load"))


def test_ranks_that_see_different_checkpoints_say_so(tmp_path: Path) -> None:
    def saved(run: Run) -> None:
        model = begin(run)
        for name in ("a", "b"):
            run.save(tmp_path / name)
            model(torch.ones(1, 2)).sum().backward()
            run.optimizers[0].step()
            run.engine.step = 0

    on_ranks(2, saved)

    def work(comm) -> None:
        run = make_run(comm)
        begin(run)
        with pytest.raises(Disagreement, match="one checkpoint on rank 0 and another one on rank 1"):
            run.load(tmp_path / "ab"[comm.rank])

    run_ranks(2, work)


def test_a_checkpoint_after_an_epoch_goes_on_with_the_next(tmp_path: Path) -> None:
    """Once a resumed run passed over its first epoch without a batch."""

    def loaded(run: Run):
        data = DataLoader(TensorDataset(torch.arange(8)), batch_size=2, shuffle=True)
        model = copy.deepcopy(MODEL)
        return run.prepare(model, sgd(model), data, plan="dense")[2]

    def whole(run: Run):
        loader = loaded(run)
        list(loader)
        run.save(tmp_path / "epoch")
        return [batch.tolist() for (batch,) in loader]

    def resumed(run: Run):
        loader = loaded(run)
        run.load(tmp_path / "epoch")
        return [batch.tolist() for (batch,) in loader]

    expected = on_ranks(2, whole)
    assert on_ranks(2, resumed) == expected
    assert all(len(batches) == 2 for batches in expected)


class Extra(nn.Module):
    """Has state that is no tensor, and parameters and buffers of unusual kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.none = nn.Parameter(torch.empty(0, 3))
        self.low = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.register_buffer("flag", torch.tensor(True))
        self.seen = 0

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state) -> None:
        self.seen = state["seen"]

    def forward(self, x):
        self.seen += 1
        return self.inner(x) * self.scalar * self.low.float()


def test_unusual_state_comes_back(tmp_path: Path) -> None:
    def saved(run: Run):
        model = begin(run, adam, model=Extra())
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            run.optimizers[0].step()
        run.save(tmp_path / "kept")
        return {name: v for name, v in model.state_dict().items() if isinstance(v, torch.Tensor)}

    def loaded(run: Run):
        model = begin(run, adam, model=Extra())
        run.load(tmp_path / "kept")
        assert model.seen == 2
        return {name: v for name, v in model.state_dict().items() if isinstance(v, torch.Tensor)}

    for before, after in zip(on_ranks(2, saved), on_ranks(2, loaded), strict=True):
        assert_equal(before, after)


def test_gradients_that_pile_up_are_not_lost_without_a_word(tmp_path: Path) -> None:
    """A checkpoint does not hold them, so the resumed run would step with a part of the batch."""

    def body(run: Run) -> None:
        model = begin(run)
        with run.no_sync():
            model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(UserError, match="in the middle of gradient accumulation would lose"):
            run.save(tmp_path / "kept")
        assert not list(tmp_path.iterdir())
        model.zero_grad()
        run.save(tmp_path / "kept")

    on_ranks(2, body)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda run, folder: run.save(folder), "rank 0 saves a checkpoint after 0 steps; rank 1 takes step 0"),
        (lambda run, folder: run.load(folder), "rank 0 loads a checkpoint after 0 steps; rank 1 takes step 0"),
        (lambda run, _: run.prune(0.5), "rank 0 prunes or takes masks after 0 steps; rank 1 takes step 0"),
        (lambda run, _: run.use_masks(Masks({})), "rank 0 prunes or takes masks after 0 steps"),
    ],
)
def test_what_all_ranks_must_do_and_one_does(tmp_path: Path, call, says: str) -> None:
    def work(comm) -> None:
        run = make_run(comm)
        model = begin(run)
        step = model(torch.ones(1, 2)).sum().backward
        with pytest.raises(UnevenInputs, match=f"{says}.*on all ranks, after the same step"):
            call(run, tmp_path / "kept") if run.rank == 0 else step()
        run.close()

    run_ranks(2, work)


def test_what_a_scheme_keeps_is_not_forgotten_under_another(tmp_path: Path) -> None:
    """Residuals and momentum of the saved run were once dropped, or given to a scheme that means another thing."""
    large = nn.Linear(40, 40)

    def prepared(run: Run, plan: str) -> nn.Module:
        mine = copy.deepcopy(large)
        run.prepare(mine, sgd(mine), plan=plan)
        return mine

    def load(saved: str, plan: str) -> None:
        on_ranks(2, lambda run: (prepared(run, plan), run.load(tmp_path / saved)))

    for plan in ("topk", "dgc", "dense"):
        on_ranks(2, lambda run, plan=plan: (prepared(run, plan), run.save(tmp_path / plan)))
    for saved, other in (("topk", "dense"), ("topk", "dgc"), ("dgc", "topk")):
        with pytest.raises(UserError, match=r"kept of weight between steps.*resume with the plan"):
            load(saved, other)
    for saved, other in (("topk", "topk"), ("dense", "topk"), ("dense", "def-random-block")):
        load(saved, other)
