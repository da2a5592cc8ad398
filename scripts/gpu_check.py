"""What to run the day a GPU is at hand; see scripts/gpu-check."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import omnizen as oz
from omnizen.bench.cases.lm import LmCase
from omnizen.data.tokens import TokenCorpus
from omnizen.kernels.bits import pack_bits, unpack_bits
from omnizen.kernels.compaction import compact
from omnizen.kernels.largest import largest
from omnizen.kernels.magnitudes import sample_magnitudes
from omnizen.kernels.merge import merge
from omnizen.kernels.nonzero_rows import nonzero_rows
from omnizen.kernels.owner import cyclic_owner, hash_owner
from omnizen.kernels.partition import hash_divide, partition
from omnizen.kernels.spec import Kernel
from omnizen.lab.local import run_local

SIZES = (0, 1, 1023, 4097, 1_000_003)
STEPS, BATCH = 20, 32


def kernel_inputs(size: int) -> Iterator[tuple[Kernel, tuple]]:
    """Yield each kernel with inputs of about this size, on the CPU."""
    rng = torch.Generator().manual_seed(size)
    rows = torch.randperm(4 * size + 1, generator=rng)[:size].sort().values
    values = torch.randn(size, 8, generator=rng)
    yield hash_owner, (rows, 7, 3)
    yield cyclic_owner, (rows, 7, 0)
    yield partition, (hash_owner.run("reference", rows, 7, 3), 7)
    yield hash_divide, (rows, 7, 3, torch.int32)
    yield compact, (values.view(-1), 1.5, size)
    yield largest, (values.view(-1), size // 100)
    if size:
        yield sample_magnitudes, (values.view(-1), max(1, size // 50), 3)
    yield pack_bits, (rows, 4 * size + 1)
    yield unpack_bits, (pack_bits.run("reference", rows, 4 * size + 1),)
    yield nonzero_rows, (torch.where(torch.rand(size, 1, generator=rng) < 0.1, values, 0.0),)
    yield merge, ([rows, rows[::2]], [values, values[::2]])


def moved(value: object, device: torch.device) -> object:
    """Return tensors on a device, in the same nesting."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return type(value)(moved(v, device) for v in value) if isinstance(value, (list, tuple)) else value


def flat(value: object) -> list[torch.Tensor]:
    """Return all tensors of a nesting, on the CPU."""
    if isinstance(value, torch.Tensor):
        return [value.cpu()]
    return [t for v in value for t in flat(v)] if isinstance(value, (list, tuple)) else []


def check_kernels(device: torch.device) -> None:
    """Compare what ``auto`` runs on the device with the reference on the CPU; integers and bits must be equal."""
    for size in SIZES:
        for kernel, args in kernel_inputs(size):
            expected = flat(kernel.run("reference", *args))
            got = flat(kernel(*moved(args, device)))
            for a, b in zip(expected, got, strict=True):
                torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6, msg=lambda m, k=kernel: f"{k.name}: {m}")
            print(f"kernel {kernel.name:14s} size {size:9,}  {kernel.choose(device):9s}  equal")


def make_case() -> LmCase:
    """Return the language model over numbers as words, so that no data is needed."""
    ids = (torch.randn(400_000, generator=torch.Generator().manual_seed(0)).abs() * 8000).long().clamp(max=49_999)
    return LmCase(corpus=TokenCorpus("numbers", ids.int().numpy(), [str(i) for i in range(50_000)]))


def train(device: torch.device, run: oz.Run | None) -> tuple[list[float], float]:
    """Return losses and the median seconds of a step."""
    case = make_case()
    model = case.make_model(sparse=True, seed=0).to(device)
    optimizer = case.make_optimizer(model)
    rank, size = (run.rank, run.size) if run else (0, 1)
    if run is not None:
        model, optimizer, _ = run.prepare(model, optimizer, plan="zen-coo")
    losses, seconds = [], []
    for step in range(STEPS):
        batch = [t.to(device) for t in case.batch_at(step, rank=rank, size=size, batch=BATCH, seed=0)]
        began_s = time.perf_counter()
        optimizer.zero_grad()
        loss = case.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began_s)
    return losses, sorted(seconds)[len(seconds) // 2]


def work(devices: list[str]) -> None:
    """Be one worker of the mixed job."""
    device = torch.device(devices[int(os.environ["RANK"])])
    with oz.init() as run:
        losses, step_s = train(device, run)
    print(f"{device}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {step_s * 1000:.1f} ms a step", flush=True)


def check_mixed_job(device: str) -> None:
    """Run one CPU and one accelerator worker in one job over loopback."""
    command = [sys.executable, str(Path(__file__)), "--worker", "cpu", device]
    result = run_local(2, command, rate=None, timeout_s=180, on_line=lambda host, line: print(f"[{host}] {line}"))
    if result.exit_code:
        sys.exit(f"the mixed job failed with exit code {result.exit_code}")


def timed(name: str, body: Callable[[], object]) -> None:
    """Run a part and say how long it took."""
    began_s = time.perf_counter()
    print(f"== {name}", flush=True)
    body()
    print(f"== {name}: {time.perf_counter() - began_s:.1f} s", flush=True)


def check_step(device: torch.device) -> None:
    """Train alone on the CPU and on the device; losses agree as far as float32 kernels of two devices do."""
    (here, here_s), (there, there_s) = train(torch.device("cpu"), None), train(device, None)
    torch.testing.assert_close(torch.tensor(there), torch.tensor(here), rtol=1e-3, atol=1e-3)
    print(f"language model step: CPU {here_s * 1000:.1f} ms, {device} {there_s * 1000:.1f} ms, losses agree")


def main() -> None:
    """Run all parts, or be a worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--worker", nargs=2)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("gpu-check: torch sees no GPU here; --device cpu runs the same code without one")
    device = torch.device(options.device)
    timed("kernels equal their references", lambda: check_kernels(device))
    timed("the language model's step", lambda: check_step(device))
    timed("one CPU and one accelerator worker in one job", lambda: check_mixed_job(options.device))


if __name__ == "__main__":
    main()
