"""The laws of the batch controller, on simulated workers."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence

import pytest

from omnizen.errors import UserError
from omnizen.plan.apportion import level
from omnizen.plan.batch_control import BatchControl, BatchLaw, async_lr_scale

SPEEDS = ([1, 1, 1, 3], [1, 1, 1, 10], [1, 2, 4, 8], [3, 1, 1, 1.5])
"""Seconds a sample of four workers."""
BATCH = 32


class Cluster:
    """Workers that take ``seconds_a_sample * (fixed + size)``, with some noise."""

    def __init__(self, seconds_a_sample: Sequence[float], fixed: float = 0.0, noise: float = 0.0, seed: int = 0):
        self.slowness, self.fixed, self.noise = list(seconds_a_sample), fixed, noise
        self._random = random.Random(seed)

    def times(self, sizes: Sequence[int]) -> list[float]:
        return [
            c * (self.fixed + size) * max(0.1, 1 + self.noise * self._random.gauss(0, 1))
            for c, size in zip(self.slowness, sizes, strict=True)
        ]

    def excess(self, sizes: Sequence[int]) -> float:
        """How much longer a step takes than with the best parts, were samples divisible."""
        speeds = [1 / c for c in self.slowness]
        fixed = [self.fixed] * len(sizes)
        best = level(sum(sizes), speeds, fixed, 1, [sum(sizes)] * len(sizes))
        taken, least = (
            max(c * (self.fixed + n) for c, n in zip(self.slowness, parts, strict=True)) for parts in (sizes, best)
        )
        return taken / least - 1

    def one_sample(self, sizes: Sequence[int]) -> float:
        """The slowest worker's time for one sample, as part of the step."""
        steps = [c * (self.fixed + n) for c, n in zip(self.slowness, sizes, strict=True)]
        return max(self.slowness) / max(steps)


def drive(
    control: BatchControl, cluster: Cluster, steps: int, at_step: Callable[[int], None] = lambda _: None
) -> list[int]:
    """Return the steps after which sizes changed."""
    changed = []
    for step in range(steps):
        at_step(step)
        before = control.sizes
        if control.tell(cluster.times(before), before) is not None:
            changed.append(step)
        assert sum(control.sizes) == sum(before)
        assert min(control.sizes) >= 1
    return changed


@pytest.mark.parametrize("seconds_a_sample", SPEEDS)
@pytest.mark.parametrize("fixed", [0.0, 3.2, 9.6])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_settles_within_three_adjustments(seconds_a_sample, fixed: float, noise: float) -> None:
    cluster = Cluster(seconds_a_sample, fixed, noise)
    control = BatchControl([BATCH] * 4)
    changed = drive(control, cluster, 40)
    assert 1 <= len(changed) <= 3
    assert cluster.excess(control.sizes) < 0.04 + cluster.one_sample(control.sizes)


def test_knowing_the_fixed_cost_needs_fewer_adjustments_than_the_papers_law() -> None:
    counts = {}
    for law in ("fitted", "proportional"):
        control = BatchControl([BATCH] * 4, BatchLaw(law=law))
        counts[law] = len(drive(control, Cluster([1, 1, 1, 3], fixed=BATCH * 0.6), 100))
    assert counts == {"fitted": 2, "proportional": 5}


def test_the_papers_law_is_size_times_mean_time_over_own_time() -> None:
    control = BatchControl([40, 40, 40], BatchLaw(law="proportional", window=1, dead_band=0.0))
    seconds = [1.0, 2.0, 1.5]
    wanted = [40 * (4.5 / 3) / s for s in seconds]
    assert control.tell(seconds, control.sizes) == tuple(round(w * 120 / sum(wanted)) for w in wanted)


@pytest.mark.parametrize("noise", [0.03, 0.1])
@pytest.mark.parametrize("law", ["fitted", "proportional"])
def test_does_not_oscillate_over_200_steps_with_noise(noise: float, law) -> None:
    """Sizes that are right stay; from a wrong start all but a few changes come at once."""
    for seed in range(5):
        equal = BatchControl([BATCH] * 4, BatchLaw(law=law))
        assert not drive(equal, Cluster([1, 1, 1, 1], 3.2, noise, seed), 200)
        control = BatchControl([BATCH] * 4, BatchLaw(law=law))
        changed = drive(control, Cluster([1, 1, 1, 3], 3.2, noise, seed), 200)
        assert len(changed) <= 6
        assert sum(step > 100 for step in changed) <= 2


@pytest.mark.parametrize("seconds_a_sample", SPEEDS)
@pytest.mark.parametrize("fixed", [0.0, 9.6])
def test_recovers_within_three_adjustments_when_speeds_swap(seconds_a_sample, fixed: float) -> None:
    cluster = Cluster(seconds_a_sample, fixed, noise=0.03, seed=2)
    control = BatchControl([BATCH] * 4)
    drive(control, cluster, 60)
    before = control.adjustments
    cluster.slowness.reverse()
    changed = drive(control, cluster, 60)
    assert 1 <= control.adjustments - before <= 3
    assert changed[0] < 10
    assert cluster.excess(control.sizes) < 0.05 + cluster.one_sample(control.sizes)


def test_never_starves_a_worker() -> None:
    control = BatchControl([4, 4, 4])
    drive(control, Cluster([1, 1, 1e9]), 30)
    assert control.sizes == (6, 5, 1)


def test_a_worker_paused_for_ten_seconds_keeps_its_share() -> None:
    cluster = Cluster([0.01] * 4, noise=0.03)
    control = BatchControl([BATCH] * 4)
    for step in range(60):
        seconds = cluster.times(control.sizes)
        if step == 27:
            seconds[2] += 10.0
        control.tell(seconds, control.sizes)
    assert control.sizes == (BATCH,) * 4


def test_a_worker_slow_for_some_windows_gets_its_share_back() -> None:
    cluster = Cluster([0.01] * 4)
    control = BatchControl([BATCH] * 4)

    def stall(step: int) -> None:
        cluster.slowness[2] = 0.5 if 20 <= step < 30 else 0.01

    drive(control, cluster, 60, stall)
    assert cluster.excess(control.sizes) < 0.05


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_times_that_cannot_be_are_left_out(wrong: float) -> None:
    control = BatchControl([8, 8])
    for _ in range(20):
        assert control.tell([1.0, wrong], control.sizes) is None
    assert not control.seconds


def test_steps_of_other_sizes_are_left_out_and_several_batches_count_as_one() -> None:
    control = BatchControl([8, 8])
    for _ in range(5):
        assert control.tell([1.0, 3.0], [8, 7]) is None
        assert control.tell([1.0, 3.0], [16, 8]) is None
        assert control.tell([1.0, 3.0], [0, 0]) is None
    assert not control.seconds
    answers = [control.tell([4.0, 12.0], [32, 32]) for _ in range(5)]
    assert (answers[-1], control.seconds) == ((12, 4), (1.0, 3.0))


def test_bounds_are_kept_and_what_they_cut_off_goes_to_the_others() -> None:
    control = BatchControl([32] * 4, BatchLaw(least=16, most=40))
    drive(control, Cluster([1, 1, 1, 8]), 30)
    assert control.sizes == (38, 37, 37, 16)
    crowded = BatchControl([40, 40, 40, 8], BatchLaw(most=33))
    drive(crowded, Cluster([1, 1, 1, 1]), 10)
    assert max(crowded.sizes) <= 33


def test_backs_off_from_a_size_at_which_a_worker_is_slower_a_sample() -> None:
    """Worker 0 thrashes above 40 samples; without a bound it would go back and forth."""

    class Thrashing(Cluster):
        def times(self, sizes: Sequence[int]) -> list[float]:
            return [t * (3 if k == 0 and sizes[0] > 40 else 1) for k, t in enumerate(super().times(sizes))]

    control = BatchControl([32, 32, 32])
    changed = drive(control, Thrashing([1, 2, 2]), 200)
    assert control.sizes[0] <= 40
    assert len(changed) <= 4


def test_workers_that_share_a_machine_and_all_become_slower_are_not_bounded() -> None:
    """While the slowest works alone at the end of a step it has the machine to itself; balanced, nobody has."""

    class Crowded(Cluster):
        def times(self, sizes: Sequence[int]) -> list[float]:
            times = super().times(sizes)
            return [t * (1.3 if max(times) < 1.5 * min(times) else 1.0) for t in times]

    control = BatchControl([32] * 4)
    changed = drive(control, Crowded([1, 1, 1, 3]), 60)
    assert len(changed) <= 3
    assert control.sizes in [(39, 38, 38, 13), (38, 39, 38, 13), (38, 38, 39, 13)]


def test_one_worker_has_nothing_to_balance() -> None:
    control = BatchControl([32])
    assert drive(control, Cluster([1.0]), 20) == []


def test_ranks_that_are_told_the_same_decide_the_same_also_after_a_resume() -> None:
    cluster = Cluster([1, 2, 1, 4], 5.0, 0.05)
    first = BatchControl([BATCH] * 4)
    drive(first, cluster, 13)
    second = BatchControl([BATCH] * 4)
    second.load_state_dict(json.loads(json.dumps(first.state_dict()), object_hook=_numbers))
    for _ in range(100):
        seconds, sizes = cluster.times(first.sizes), first.sizes
        assert first.tell(seconds, sizes) == second.tell(seconds, sizes)
    assert first.state_dict() == second.state_dict()


def _numbers(found: dict) -> dict:
    return {int(k) if k.isdigit() else k: v for k, v in found.items()}


def test_a_state_of_another_run_is_refused() -> None:
    with pytest.raises(UserError, match="this run has 2 and 20"):
        BatchControl([10, 10]).load_state_dict(BatchControl([8, 8, 8]).state_dict())


def test_settings_out_of_range_are_refused() -> None:
    for wrong, said in (
        ({"law": "fited"}, "fitted"),
        ({"window": 0}, "window"),
        ({"smoothing": 0.0}, "smoothing"),
        ({"dead_band": math.nan}, "dead_band"),
        ({"least": 4, "most": 3}, "below least"),
        ({"global_batch": 1.5}, "global_batch"),
    ):
        with pytest.raises(UserError, match=said):
            BatchLaw(**wrong)
    with pytest.raises(UserError, match="at most 64"):
        BatchControl([32] * 4, BatchLaw(most=16))
    with pytest.raises(UserError, match="at least one sample"):
        BatchControl([3, 0])


def test_step_size_of_a_contribution_follows_its_batch() -> None:
    assert async_lr_scale(16, 32) == 0.5
    for wrong in (0, math.nan):
        with pytest.raises(UserError):
            async_lr_scale(wrong, 32)
