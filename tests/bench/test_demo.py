import io

import pytest
from rich.console import Console

from omnizen.bench.demo import DemoSettings, Network, Outcome, network, run_demo
from omnizen.bench.demo_show import Show, side_by_side
from omnizen.bench.job import Answer
from omnizen.bench.launch import Loopback
from omnizen.bench.summary import Trial
from omnizen.errors import OmnizenError, UserError


def settings(tmp_path, **given):
    return DemoSettings(**({"out": tmp_path / "out", "paced": True, "workers": 2} | given))


def trial(method, losses, step_s, rx, predicted=None):
    answers = [
        Answer(
            rank=rank, size=2, method=method, losses=losses, step_s=[step_s], rx_bytes_per_step=rx,
            predicted_step_s=predicted,
        )
        for rank in range(2)
    ]  # fmt: skip
    return Trial(method, answers)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"workers": 1}, "between 2 and 16 workers"),
        ({"workers": 64}, "between 2 and 16 workers"),
        ({"rate": "100"}, "has no unit"),
        ({"seconds": 0.0}, "above 0 seconds"),
    ],
)
def test_bad_settings_are_named(tmp_path, given, says):
    with pytest.raises(UserError, match=says):
        settings(tmp_path, **given)


def test_an_empty_or_missing_folder_stops_before_any_worker(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "missing"):
        s = settings(tmp_path, text=tmp_path / folder)
        with pytest.raises(UserError, match=folder):
            run_demo(s, network(s), Show(Console(file=io.StringIO())))
    assert not (tmp_path / "out").exists()


def test_paced_figures_are_never_called_a_wire(tmp_path):
    s = settings(tmp_path)
    joined = network(s)
    assert joined == Network(Loopback(2, "100mbit"), False, None)
    outcome = Outcome(
        trial("ddp", [6.0, 5.0], 4.0, 6e7),
        trial("omnizen", [6.0, 5.0, 4.0], 0.5, 2e6, 0.6),
        tmp_path / "report.html",
    )
    text = io.StringIO()
    show = Show(Console(file=text, width=160))
    show.network(s, joined)
    show.outcome(joined, outcome)
    said = text.getvalue()
    assert "loopback paced in software" in said
    assert "counted, not on a wire" in said
    assert "on the wire" not in said
    assert "8.0 x faster" in said
    assert "30.0 x less" in said
    assert "first 2 steps agree to 0.0e+00" in said
    assert "off by 20%" in said


def test_a_failed_run_ends_the_demo_with_its_reason(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("a b c d e f g h " * 200)
    s = settings(tmp_path, text=tmp_path / "text")

    def launch(command, on_line, limit_s):
        on_line(0, "no such interface")
        return [1, 1]

    with pytest.raises(OmnizenError, match=r"the ddp run failed: rank 0 ended with status 1 .*no such interface"):
        run_demo(s, Network(launch, False, None), Show(Console(file=io.StringIO())))


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_and_in_a_log(tmp_path, terminal):
    text = io.StringIO()
    with Show(Console(file=text, width=120, force_terminal=terminal)) as show:
        follow = show.begin("ddp", tmp_path)
        follow("doing", {"text": "measuring links"})
        if not terminal:
            assert text.getvalue().endswith("measuring links ...\n")
        follow("planned", {"steps": 3})
        follow("step", {"step": 0, "step_s": 5.5, "loss": 6.25})
        show.end(trial("ddp", [6.25], 5.5, 6e7))
    assert "1. stock DistributedDataParallel: starting workers" in text.getvalue()
    assert "1 steps, 5.500 s each, loss 6.2500" in text.getvalue()
    assert ("\x1b" in text.getvalue()) == terminal


def test_losses_after_unequal_steps_are_not_shown_as_a_comparison(tmp_path):
    joined = Network(lambda *_: [], False, None)
    unequal = Outcome(
        trial("ddp", [7.0, 6.5], 5.0, 6e7), trial("omnizen", [7.0, 6.5, 6.0, 5.0], 0.6, 2e6), tmp_path
    )
    equal = Outcome(trial("ddp", [7.0, 6.5], 5.0, 6e7), trial("omnizen", [7.0, 6.5], 0.6, 2e6), tmp_path)
    shown = {}
    for name, outcome in (("unequal", unequal), ("equal", equal)):
        text = io.StringIO()
        Console(file=text, width=160).print(side_by_side(joined, outcome))
        shown[name] = text.getvalue()
    lines = shown["unequal"].splitlines()
    assert next(line for line in lines if "steps taken" in line).split()[-4:] == ["2", "steps", "4", "steps"]
    assert next(line for line in lines if "unequal numbers" in line).split()[-4:] == [
        "6.5000",
        "5.0000",
        "not",
        "compared",
    ]
    assert "unequal" not in shown["equal"]


def test_the_step_that_plans_is_announced(capsys):
    from types import SimpleNamespace

    from omnizen.bench.worker import Loop

    answer = SimpleNamespace(rank=0, losses=[], warmup_steps=0)
    wrapped = SimpleNamespace(run=object(), settled=lambda: len(answer.losses) >= 3, steps_after_settling=1)
    wrapped.batches = None
    loop = Loop(None, iter(()), wrapped, SimpleNamespace(warmup_steps=1), answer, None)
    loop.step = lambda: answer.losses.append(print("@step"))
    loop.warm_up()
    said = [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["@step", "@step", "@doing", "@step", "@plan", "@step"]
