"""The section on more machines: simulated numbers that say so, or the reason why there are none."""

from omnizen.measure.facts import StepFacts
from omnizen.report.more_machines import more_machines
from tests.plan.builders import job


class _Run:
    def __init__(self, facts, label="a run"):
        self.facts, self.label = facts, label


def test_numbers_for_8_to_4096_workers_and_what_they_rest_on():
    text = more_machines([_Run(job(4)), _Run(job(4), "another")]).text
    assert text.count("Samples a second by workers") == 1
    for part in (
        "Simulated, not measured",
        "4,096",
        "a run and another",
        "worker r is like measured worker r mod 4",
    ):
        assert part in text


def test_what_cannot_be_said_is_explained():
    assert "No run directory holds facts" in more_machines([_Run(None)]).text
    lacking = job(4, step=None)
    assert "time of a step" in more_machines([_Run(lacking)]).text
    nothing = job(4, step=StepFacts(compute_s=0.0, backward_s=0.0, samples=0))
    assert "time of a step" in more_machines([_Run(nothing)]).text
