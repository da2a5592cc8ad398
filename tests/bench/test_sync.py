import pytest

from omnizen.bench.grid import Point
from omnizen.bench.job import Network
from omnizen.bench.launch import Loopback
from omnizen.bench.sync import fastest_of, group_rows, points, run_sync, tables, verdict
from omnizen.bench.sync_worker import MORE, SyncAnswer, Timing, enough, near_the_best
from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError

POINT = Point(hosts=2, rate_mbit=8.0, rows=100, width=4, density=0.1, skew="zipf")


def answer(rank, scale):
    def timing(scheme, seconds, rx):
        return Timing(
            point=0, scheme=scheme, seconds=[s * scale for s in seconds], wire_rx_bytes=rx * 1.1 * scale,
            payload_rx_bytes=rx * scale, predicted_s=0.02, predicted_rx_bytes=2000.0,
        )  # fmt: skip

    return SyncAnswer(
        rank=rank,
        timings=[timing("dense", [0.01, 0.03, 0.02], 1000.0), timing("zen-coo", [0.005] * 3, 1020.0)],
        picks=["zen-coo"],
        formula_picks=["dense"],
        network=Network(network="namespaces, shaped links", rate_bytes_per_s=1e6),
    )


def test_rows_hold_the_slowest_and_busiest_rank_and_judge_the_pick():
    rows = {(r.method, r.metric): r for r in group_rows([POINT], [answer(0, 1.0), answer(1, 2.0)], "", {"seed": 0})}
    assert rows["dense", "reduce_s"].value == pytest.approx(0.04)
    assert rows["dense", "rx_bytes"].value == pytest.approx(2200.0)
    assert rows["dense", "reduce_s"].params["over_bytes_per_rate"] == pytest.approx(0.04 / 2200e-6)
    assert rows["zen-coo", "rx_bytes"].params["payload_over_formula"] == pytest.approx(1.02)
    planner = rows["planner", "pick_over_fastest"]
    assert (planner.value, planner.params["within_5_percent"]) == (1.0, True)
    assert planner.params["formula_pick_over_fastest"] == pytest.approx(4.0)
    lines = verdict(list(rows.values()))
    assert lines[0].startswith("planner's pick fastest or within 5 % of it: 1 of 1 gradients (0 by formulas")
    assert lines[1] == "planner's pick slower than dense by more than 5 %: 0 of 1"
    assert planner.params["pick_over_dense"] == pytest.approx(0.25)
    assert "2 of 2" in lines[2]
    assert [t.row_count for t in tables(list(rows.values()))] == [2]


def test_a_scheme_that_was_dropped_early_does_not_win_because_later_turns_were_slower():
    early, later = [3e-3] * 25, [3e-3] * 25 + [5e-3] * 100
    assert fastest_of({"agsparse": later, "zen-coo": [s * 1.01 for s in later], "dense": [4e-3] * 25}) == "agsparse"
    assert fastest_of({"agsparse": early, "dense": [2e-3] * 25}) == "dense"


def test_a_group_without_an_answer_is_failed_rows():
    rows = group_rows([POINT], [], "rank 0 ended with status 1", {})
    assert [(r.metric, r.params["reason"]) for r in rows] == [("failed", "rank 0 ended with status 1")]
    assert [t.row_count for t in tables(rows)] == [1]
    assert verdict(rows) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hosts": [1]}, "hosts"),
        ({"densities": [1.5]}, "density"),
        ({"skews": ["zipff"]}, "skew"),
        ({"rates": ["fast"]}, "not a number with a unit"),
        ({"width": 0}, "width"),
        ({"hosts": [3], "grid": True}, "the grid has no hosts 3; it has 2, 4, 8, 16"),
        ({"rates": ["7mbit"], "grid": True}, "the grid has no rate 7"),
    ],
)
def test_bad_points_are_named(given, says):
    good = {"hosts": [2], "rates": ["8mbit"], "rows": 10, "width": 2, "densities": [0.5], "skews": ["zipf"]}
    with pytest.raises(UserError, match=says):
        points(**(good | given))


def test_an_unknown_scheme_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'zen-coo'"):
        run_sync([POINT], schemes=["zen-cooo"])


@pytest.mark.procs
def test_schemes_are_timed_and_metered_over_loopback():
    wanted = [POINT.model_copy(update={"rows": 400}), POINT.model_copy(update={"rows": 600, "width": 1})]
    schemes = ("dense", "agsparse")
    told = []
    rows = run_sync(
        wanted, schemes=schemes, repeats=2, launch=lambda hosts, rate: Loopback(hosts), on_rows=told.extend,
        enough_s=0.3,
    )  # fmt: skip
    assert told == rows
    timed = [r for r in rows if r.metric == "reduce_s"]
    assert {(r.case, r.method) for r in timed} == {(p.name, s) for p in wanted for s in schemes}, rows
    assert all(r.repeats >= 1 for r in timed)
    assert all(r.params["payload_over_formula"] == pytest.approx(1.0, abs=0.1) for r in timed)
    assert all(r.params["source"] == "meter" for r in rows if r.metric == "rx_bytes")


def test_short_reductions_are_repeated_more_often():
    assert [enough(2, best_s) for best_s in (0.001, 0.1, 5.0)] == [2 * MORE, 40, 2]


def test_schemes_far_from_the_best_are_not_repeated_on_any_rank():
    def body(comm):
        slower_here = [0.01, 0.018, 0.03] if comm.rank else [0.01, 0.01, 0.01]
        timings = [Timing(point=0, scheme=str(i), seconds=[s]) for i, s in enumerate(slower_here)]
        near, best_s = near_the_best(timings, comm, 2.0)
        with_pick, _ = near_the_best(timings, comm, 1.5, "2")
        return [t.scheme for t in near], [t.scheme for t in with_pick], best_s

    assert run_ranks(2, body) == [(["0", "1"], ["0", "2"], 0.01)] * 2
