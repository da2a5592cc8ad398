import os

import pytest
import torch
from torch import nn

from omnizen.errors import UserError
from omnizen.lab.environment import Surroundings
from omnizen.measure.device import available_cores, available_memory_bytes, measure_device
from omnizen.measure.model import measure_rate, model_digest


def test_a_device_is_described_with_rates():
    facts = measure_device(3, repeats=1)
    assert (facts.rank, facts.device) == (3, "cpu")
    assert 0 < facts.cores <= os.cpu_count()
    assert facts.memory_bytes > 2**20
    assert facts.name
    assert min(facts.merge_bytes_per_s, facts.merge_rows_per_s, facts.copy_bytes_per_s) > 0
    assert min(facts.bits_per_s, facts.locate_rows_per_s, facts.code_rows_per_s, facts.code_values_per_s) > 0
    assert min(facts.select_elements_per_s, facts.quantise_elements_per_s) > 0
    assert 0 < facts.code_part_s < 1
    assert 0 < facts.code_values_part_s < 1


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "50000 100000"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "25000", "cpu/cpu.cfs_period_us": "100000"}, 0.25),
    ],
)
def test_a_quota_counts_as_a_part_of_a_core(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert available_cores(tmp_path) == cores


def test_no_quota_leaves_the_cores_that_the_process_may_run_on(tmp_path):
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_a_memory_limit_counts(tmp_path):
    (tmp_path / "memory.max").write_text("1048576\n")
    assert available_memory_bytes(tmp_path) == 1048576


def test_the_digest_sees_names_shapes_dtypes_and_what_is_frozen():
    model = nn.Linear(2, 3)
    digest = model_digest(model)
    assert digest == model_digest(nn.Linear(2, 3))
    frozen = nn.Linear(2, 3).requires_grad_(False)
    others = [nn.Linear(3, 2), nn.Linear(2, 3, bias=False), nn.Linear(2, 3).to(torch.float64), frozen]
    assert len({digest, *map(model_digest, others)}) == 5


def test_the_rate_leaves_the_warm_up_out():
    now = [0.0]
    seconds = {8: iter([9.0, 9.0, 1.0, 1.0, 1.0]), 16: iter([9.0, 9.0, 1.0, 2.0, 4.0])}

    def step(batch):
        now[0] += next(seconds[batch])

    rates = measure_rate(step, {16: 16, 8: 8}, repeats=3, budget_s=100.0, clock=lambda: now[0])
    assert (rates[8].samples_per_s, rates[8].spread) == (8.0, 0.0)
    assert (rates[16].samples_per_s, rates[16].step_s) == pytest.approx((16 * 3 / 7, 7 / 3))
    assert rates[16].spread == pytest.approx((3.2 - 1.4) / 2)


def test_a_processor_that_rests_now_and_then_is_as_fast_as_it_is_on_the_whole():
    now, calls = [0.0], [0]

    def step(_batch):
        calls[0] += 1
        now[0] += 0.01 if calls[0] % 4 else 0.09  # three short steps, then the quota is used up

    assert measure_rate(step, {1: 1}, clock=lambda: now[0])[1].samples_per_s == pytest.approx(4 / 0.12, rel=0.25)
    assert calls[0] > 2 + 5


def test_the_budget_stops_before_the_next_size():
    now = [0.0]

    def step(_batch):
        now[0] += 5.0

    assert list(measure_rate(step, {1: 1, 2: 2}, repeats=1, budget_s=8.0, clock=lambda: now[0])) == [1]


def test_no_batch_is_refused():
    with pytest.raises(UserError, match="at least one size"):
        measure_rate(print, {})


def test_a_lab_says_what_its_network_namespaces_hide(tmp_path, monkeypatch):
    """In them no control group can be seen, so a host with a quarter of a core once reported whole ones."""
    env = Surroundings(hosts=1, address="", port=1, interface="", dilation=1.0, network="").env(0, None, 0.25)
    monkeypatch.setenv("OMNIZEN_LAB", env["OMNIZEN_LAB"])
    assert available_cores(tmp_path) == 0.25
