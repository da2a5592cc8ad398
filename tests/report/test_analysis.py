import json
import math
from dataclasses import replace
from statistics import fmean

import pytest

from omnizen.events import events_path, from_dict
from omnizen.report import charts, words
from omnizen.report.analysis import link_bytes, loss_at_equal_steps, losses, summarise, unusual_steps
from omnizen.report.load import load_run, load_runs
from omnizen.report.page import render
from tests.report.sample_run import DENSE_BYTES, PLAN_STEP, SIZE, STEPS, write_run


def test_the_steady_part_begins_after_the_step_that_made_the_plan(demo):
    ddp, ours = (summarise(run) for run in demo)
    assert (ours.first_step, ours.last_step) == (PLAN_STEP + 1, STEPS - 1)
    assert ddp.first_step == 1
    assert ddp.rx_bytes == DENSE_BYTES
    steady = [e.rx_bytes for log in demo[1].ranks.values() for e in log.steps if e.step > PLAN_STEP]
    assert ours.rx_bytes == pytest.approx(fmean(steady))


def test_parts_add_up_to_the_mean_step(demo):
    run = demo[1]
    for rank, parts in summarise(run).parts.items():
        steady = [e.step_s for e in run.ranks[rank].steps if e.step > PLAN_STEP]
        assert sum(parts.values()) == pytest.approx(fmean(steady))


def test_a_stall_in_one_ranks_backward_is_put_down_to_that_rank(demo):
    (found,) = unusual_steps(demo[1])
    assert (found.step, found.rank) == (20, 2)
    assert found.compute_extra_s == pytest.approx(0.2, abs=0.02)


def test_a_long_step_that_no_compute_explains_is_put_down_to_communication(demo, tmp_path):
    run = load_run(write_run(tmp_path))
    for log in run.ranks.values():
        log.steps[30] = type(log.steps[30])(step=30, start_s=0.0, step_s=9.0, compute_s=log.steps[30].compute_s)
    (found,) = unusual_steps(run)
    assert (found.step, found.rank) == (30, None)


def test_the_slowest_worker_is_named_and_by_how_much(demo, tmp_path):
    run = load_run(write_run(tmp_path, slow_rank=1))
    summary = summarise(run)
    assert summary.slowest == 1
    said = words.slowest(run, summary)
    assert "slowest worker is rank 1 (host worker1)" in said
    assert "they wait for it" in said
    assert "about equally long" in words.slowest(demo[0], summarise(demo[0]))


def test_losses_are_means_over_ranks_and_compared_at_the_last_common_step(demo, tmp_path):
    short = load_run(write_run(tmp_path, steps=12))
    step, values = loss_at_equal_steps([demo[0], short])
    assert step == 11
    assert values[0] == pytest.approx(fmean(log.steps[11].loss for log in demo[0].ranks.values()))
    _, at, _ = losses(demo[0])[-1]
    assert at == max(log.steps[-1].start_s + log.steps[-1].step_s for log in demo[0].ranks.values())


def test_bytes_per_link_are_those_of_a_steady_step(demo):
    cells = link_bytes(demo[1])
    assert len(cells) == SIZE * (SIZE - 1)
    assert sum(cells.values()) / SIZE == pytest.approx(summarise(demo[1]).rx_bytes, rel=1e-5)
    assert link_bytes(demo[0]) == {}


def test_the_headline_says_how_much_faster_and_why(demo):
    ddp, ours = (summarise(run) for run in demo)
    first, why = words.headline(demo)
    assert first.endswith(f"{words.numbers.times(ddp.step_s / ours.step_s)} times as fast.")
    assert "instead of 62.1 MB" in why
    assert "sending, receiving and waiting for a peer fell from" in why
    turned = words.headline(list(reversed(demo)))
    assert turned == [first, why]


def test_a_slower_run_is_called_slower(tmp_path):
    paths = [write_run(tmp_path / "a", steps=9), write_run(tmp_path / "b", steps=9, slow_rank=0)]
    runs = load_runs(paths)
    assert "times as slow" in words.headline(runs)[0]


def test_one_run_is_held_against_its_plan(demo):
    (said,) = words.headline(demo[1:])
    assert "on 4 workers; the plan predicted 1.08 s (measured" in said


def cut(folder, last_steps):
    """Let ranks end after these steps, without saying so."""
    for rank, last in last_steps.items():
        path = events_path(folder, rank)
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if from_dict(json.loads(line)).event in ("run", "plan")]
        kept += [line for line in lines if b'"event":"step"' in line and json.loads(line)["step"] <= last]
        path.write_bytes(b"".join(kept))


@pytest.mark.parametrize(
    ("last_steps", "says"),
    [
        (dict.fromkeys(range(SIZE), 20), "omnizen (cut short after step 20, or still going) took"),
        ({0: 19, 1: 20, 2: 20, 3: 20}, "omnizen (cut short after step 19 to 20, or still going) took"),
        ({2: 20}, "omnizen (cut short on rank 2 after step 20, or still going) took"),
        ({0: -1, 1: 3, 2: 3, 3: 3}, "omnizen (cut short before step 4, or still going) took"),
        (dict.fromkeys(range(SIZE), -1), "omnizen (cut short before its first step, or still going) finished no"),
    ],
)
def test_the_headline_says_that_a_run_did_not_reach_its_end(tmp_path, last_steps, says):
    write_run(tmp_path / "a")
    cut(tmp_path / "a", last_steps)
    write_run(tmp_path / "b", "ddp")
    runs = load_runs([tmp_path / "a", tmp_path / "b"])
    alone, compared = words.headline(runs[:1])[0], words.headline(runs)[0]
    assert says in alone
    assert ("the plan predicted" in alone) == (max(last_steps.values()) >= 19)
    assert says.split(")")[0] in compared
    assert says.split("(")[1].split(")")[0] in runs[0].problems[-1]
    assert "cut short" not in words.headline(runs[1:])[0]


def test_steps_before_the_plan_are_not_held_against_it(tmp_path):
    write_run(tmp_path)
    cut(tmp_path, dict.fromkeys(range(SIZE), PLAN_STEP - 1))
    run = load_run(tmp_path)
    (said,) = words.headline([run])
    assert said.endswith("on 4 workers, all of them before the plan came into force.")
    shown = render([run])
    assert "took no step after its plan had come into force" in shown
    assert "measured step against predicted" not in shown


def test_a_plan_of_an_earlier_run_in_the_same_folder_is_left_out(tmp_path):
    write_run(tmp_path)
    for rank in range(SIZE):
        path = events_path(tmp_path, rank)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(line for line in lines if b'"event":"plan"' not in line))
    run = load_run(tmp_path)
    assert run.plan is None
    assert any("plan.toml is left out" in problem for problem in run.problems)


@pytest.mark.parametrize("network", ["loopback, paced in software", "namespaces, shaped links", "as is"])
def test_a_paced_network_is_never_called_a_wire(tmp_path, network):
    said = words.network(load_run(write_run(tmp_path, network=network, steps=2)))
    assert ("not a measurement of a wire" in said) == ("paced" in network)
    assert ("Over links paced in software" in words.headline([load_run(tmp_path)])[0]) == ("paced" in network)
    assert ("kernel to 50.0 Mbit/s (100 Mbit/s divided by the dilation of 2)" in said) == ("shaped" in network)


def test_runs_on_different_networks_are_not_compared_without_a_warning(tmp_path, demo):
    paced = load_run(write_run(tmp_path, network="loopback, paced in software"))
    assert "different networks" in words.comparable([demo[0], paced])[0]
    said = " ".join(words.headline([demo[0], paced]))
    assert "not under the same conditions" in said
    assert "times as" not in said
    assert words.comparable(demo) == []


def test_a_loss_that_is_not_a_number_stays_one(tmp_path):
    run = load_run(write_run(tmp_path, loss_from=lambda step: math.nan if step > 3 else 5.0, steps=6))
    assert math.isnan(losses(run)[-1][2])


def test_a_slow_start_does_not_flatten_the_chart_of_step_times():
    steady = dict.fromkeys(range(1, 30), 0.03)
    assert charts.shown_up_to([{0: 4.0} | steady]) == pytest.approx(0.045)
    assert charts.shown_up_to([{0: 0.08} | steady]) == 0.08
    assert charts.shown_up_to([{}, {0: 4.0}]) == 4.0


def test_a_slow_worker_that_hardly_matters_is_not_said_to_be_waited_for(demo):
    base = summarise(demo[0])
    said = words.slowest(demo[0], replace(base, compute_s={0: 0.2, 1: 0.2, 2: 0.3, 3: 0.2}, step_s=10.0))
    assert "rank 2" in said
    assert "which is 1.00 % of a step" in said


def test_long_runs_keep_their_extremes_in_the_charts():
    points = [(float(n), 1.0 + 0.001 * (n % 7)) for n in range(300_000)]
    points[123_457], points[222_222], points[77_777] = (123_457.0, 9.0), (222_222.0, 0.1), (77_777.0, math.nan)
    kept = charts.thin(points)
    assert len(kept) <= 1.01 * charts.MOST_POINTS
    assert {(123_457.0, 9.0), (222_222.0, 0.1)} <= set(kept)
    assert any(math.isnan(y) for _, y in kept)
    assert kept == sorted(kept, key=lambda point: point[0])
    assert charts.thin(points[:500]) == points[:500]
