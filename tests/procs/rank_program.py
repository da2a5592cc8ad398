"""What each process of test_torch_pg_procs runs, in torchrun's environment; prints a line for each case."""

import os
import signal

import torch
import torch.distributed as dist

from omnizen.comm.ddp_paced import PacedAllreduce, paced_allreduce_hook
from omnizen.comm.paced import PacedLink
from omnizen.comm.torch_pg import from_default
from omnizen.errors import Disagreement, PeerLost


def verbs(comm) -> str:
    n, r = comm.size, comm.rank
    total = comm.all_reduce(torch.full((3,), r + 1.0))
    gathered = comm.all_gather([torch.arange(r), torch.ones(2, 2) * r])
    across = comm.all_to_all([[torch.full((r + dest,), 10 * r + dest)] for dest in range(n)])
    ring = comm.exchange({(r + 1) % n: [torch.tensor([r])]}, [(r - 1) % n], [torch.tensor([0])])
    comm.barrier()
    assert total.wait().tolist() == [n * (n + 1) / 2] * 3
    assert [p.tolist() for p, _ in gathered.wait()] == [list(range(s)) for s in range(n)]
    assert [p.tolist() for (p,) in across.wait()] == [[10 * s + r] * (s + r) for s in range(n)]
    assert {s: p.tolist() for s, (p,) in ring.wait().items()} == {(r - 1) % n: [(r - 1) % n]}
    for _ in range(2):  # the same ranks and name twice: two groups
        group = comm.sub([0, n - 1], "ends")
        if group is not None:
            assert group.all_reduce(torch.tensor([r])).wait().item() == n - 1
            group.close()
    return "all verbs work"


def killed(comm) -> str:
    comm.step = 3
    comm.barrier()
    if comm.rank == 1:
        comm.all_to_all([[torch.ones(4_000_000)]] * comm.size)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.all_to_all([[torch.ones(4_000_000)]] * comm.size).wait()
        comm.all_to_all([[torch.ones(4_000_000)]] * comm.size).wait()
    except PeerLost as error:
        return f"{error}, in time: {error.elapsed_s < 2 * comm.timeout_s}"
    return "nothing noticed"


def uneven_steps(comm) -> str:
    try:
        for step in range(2 + (comm.rank == 0)):
            comm.step = step
            comm.all_reduce(torch.ones(1000)).wait()
    except PeerLost as error:
        return str(error)
    return "two steps"


def stock_ddp_paced(comm) -> str:
    """Stock DDP with and without the paced hook gives the same gradients; the hook waits for its link."""
    link = PacedLink(1e6, FastClock())
    state = PacedAllreduce(dist.group.WORLD, link)
    grads = []
    for hook in (None, paced_allreduce_hook):
        torch.manual_seed(1)
        table, head = torch.nn.Embedding(50, 4, sparse=True), torch.nn.Linear(4, 2)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(table, head))
        if hook is not None:
            model.register_comm_hook(state, hook)
        model(torch.arange(3) + comm.rank).square().sum().backward()
        grads.append([head.weight.grad, table.weight.grad.to_dense()])
    state.close()
    assert all(torch.allclose(plain, paced) for plain, paced in zip(*grads, strict=True))
    ring, rows = 2 * (comm.size - 1) / comm.size * 10 * 4, (comm.size - 1) * 3 * (8 + 16)
    crossed = (link.clock.slept_to_s - link.clock.monotonic()) * 1e6
    return f"crossed {crossed:.0f} bytes of {ring + rows:.0f}"


class FastClock:
    """A clock that stands still and notes until when it was told to sleep."""

    slept_to_s = 0.0

    def monotonic(self) -> float:
        return 100.0

    def sleep(self, seconds: float) -> None:
        self.slept_to_s = max(self.slept_to_s, 100.0 + seconds)


def other_sizes(comm) -> str:
    try:
        comm.all_reduce(torch.ones(1000 + comm.rank)).wait()
    except Disagreement as error:
        return str(error)
    return "nothing noticed"


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for case, timeout_s in (
        (verbs, 30.0),
        (stock_ddp_paced, 30.0),
        (other_sizes, 30.0),
        (uneven_steps, 2.0),
        (killed, 5.0),
    ):
        comm = from_default(timeout_s)  # a group of its own: the one before may be broken
        print(case.__name__, case(comm), sep=": ", flush=True)
        comm.close()
    os._exit(0)  # one rank is gone: the default group cannot be taken down in order
