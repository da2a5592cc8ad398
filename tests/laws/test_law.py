"""What comes of a check, whatever the plug-in does."""

import threading

import pytest

from omnizen.laws.law import Law, LawBroken, verdicts
from omnizen.laws.trial import Trials


def raising(error):
    def check(subject):
        raise error

    return Law("law", "It holds.", check)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LawBroken("here"), "here"),
        (ValueError("no"), "raised ValueError: no (HERE)"),
        (KeyError("x"), "raised KeyError: 'x' (HERE)"),
        (SystemExit(0), "raised SystemExit: 0 (HERE)"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt (HERE)"),
    ],
)
def test_whatever_a_plug_in_raises_is_a_broken_law(error, reason):
    (verdict,) = verdicts([raising(error)], None)
    line = raising(error).check.__code__.co_firstlineno + 1
    assert (verdict.held, verdict.reason) == (False, reason.replace("HERE", f"{__file__}, line {line}"))


def test_a_check_that_does_not_end_is_a_broken_law_and_the_rest_is_not_tried():
    never = threading.Event()
    laws = [Law("hangs", "", lambda subject: never.wait() and None), raising(ValueError())]
    assert [v.reason for v in verdicts(laws, None, limit_s=0.1)] == [
        "did not end within 0.1 s",
        "not tried, as 'hangs' did not end",
    ]
    never.set()


def test_trials_that_fail_are_run_once():
    class Fails:
        runs = 0

        @property
        def takes(self):
            self.runs += 1
            raise TimeoutError("rank0 did not end")

    reducer = Fails()
    trials = Trials(reducer)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            trials.all()
    assert reducer.runs == 1
