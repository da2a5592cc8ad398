"""A whole training script: a table with sparse gradients, evaluation, a schedule, checkpoints.

    torchrun --nproc-per-node=2 examples/train.py --folder runs/example

Started again, it goes on after the last epoch that it saved; with more --epochs it trains longer.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import omnizen as oz

ROWS, WORDS = 2_000, 15


class Model(nn.Module):
    """Says which of two classes a bag of words is of."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(ROWS, 16, sparse=True)
        self.out = nn.Linear(16, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return scores [batch, 2] of words [batch, WORDS]."""
        return self.out(self.table(words))


def made_up(samples: int, seed: int) -> TensorDataset:
    """Make bags of words, common ones more often; the class is that of most of its words."""
    words = (ROWS * torch.rand(samples, WORDS, generator=torch.Generator().manual_seed(seed)) ** 3).long()
    return TensorDataset(words, ((words % 2).float().mean(1) > 0.5).long())


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Return the share of samples whose class the model says rightly."""
    model.eval()
    words, labels = test.tensors
    right = (model(words).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def main() -> None:
    """Train, test after each epoch, and save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("runs/example"))
    asked = parser.parse_args()
    checkpoint = asked.folder / "checkpoint"

    run = oz.init(run_dir=asked.folder)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.5)
    loader = DataLoader(made_up(8192, seed=0), batch_size=32, shuffle=True)  # dealt out by prepare
    test = made_up(1024, seed=1)
    model, optimizer, loader = run.prepare(model, optimizer, loader, reads=lambda batch: {"table.weight": batch[0]})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    if checkpoint.exists():
        run.load(checkpoint, extra={"scheduler": scheduler})

    for epoch in range(scheduler.last_epoch, asked.epochs):
        for words, labels in loader:
            loss = nn.functional.cross_entropy(model(words), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
        scheduler.step()
        run.flush()  # before weights are read: what is under way arrives (nothing where rows are not pulled lazily)
        if run.rank == 0:
            print(f"epoch {epoch + 1}: {accuracy(model, test):.3f} of the test samples are right", flush=True)
        run.save(checkpoint, extra={"scheduler": scheduler})
    run.close()


if __name__ == "__main__":
    main()
