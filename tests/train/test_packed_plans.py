"""Dense gradients with packed exponents: what dense all-reduce gives, in fewer bytes."""

import copy

import torch
from torch import nn

from omnizen.comm.meter import Metered
from omnizen.plan.search import make_plan
from tests.plan.builders import GRADIENTS, MBIT, job
from tests.train.helpers import assert_equal, make_run, run_ranks, weights

DENSE = [gradient for gradient in GRADIENTS.values() if gradient.kind == "dense"]


def trained(comm, plan, begun):
    comm = Metered(comm)
    model = copy.deepcopy(begun)
    run = make_run(comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.prepare(model, optimizer, plan=plan, dense_below=0)
    before = comm.reading().rx_bytes
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(8, 300, generator=torch.Generator().manual_seed(10 * step + comm.rank))
        model(x).square().mean().backward()
        optimizer.step()
    run.close()
    return weights(model), comm.reading().rx_bytes - before


def test_training_gives_what_dense_all_reduce_gives_in_fewer_bytes():
    begun = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 7, bias=False))
    packed = run_ranks(3, lambda comm: trained(comm, "dense-packed", begun))
    plain = run_ranks(3, lambda comm: trained(comm, "dense", begun))
    assert_equal(packed[0][0], packed[1][0])
    for name, value in plain[0][0].items():
        torch.testing.assert_close(packed[0][0][name], value, rtol=1e-5, atol=1e-7)
    assert packed[0][1] < 0.9 * plain[0][1]


def test_the_plan_packs_all_dense_gradients_or_none():
    def schemes(**of_job):
        return {t.name: t.scheme for t in make_plan(job(8, gradients=DENSE, **of_job)).tensors}

    assert set(schemes(code_rows_per_s=1e8, code_part_s=1e-4).values()) == {"dense-packed"}
    assert set(schemes(code_rows_per_s=1e7, code_part_s=1e-4).values()) == {"dense"}  # 130 ms to save 24
    assert set(schemes(bytes_per_s=10_000 * MBIT, code_rows_per_s=1e8, code_part_s=1e-4).values()) == {"dense"}
    assert set(schemes().values()) == {"dense"}  # no measured price


def test_the_step_is_predicted_with_packed_buckets():
    packed = make_plan(job(8, gradients=DENSE, code_rows_per_s=1e9)).prediction
    plain = make_plan(job(8, gradients=DENSE)).prediction
    assert packed.rx_bytes_per_step < 0.88 * plain.rx_bytes_per_step
    assert packed.step_s < plain.step_s
