"""A rank of a lazily pulled job that is killed (SIGKILL, so it says nothing) is lost to all others in time."""

import re
import signal
from pathlib import Path

import pytest

from tests.procs.ranks import run

pytestmark = [pytest.mark.procs, pytest.mark.timeout(120)]  # three times ``import torch``, on a busy machine
PROGRAM = Path(__file__).with_name("lazy_program.py")


@pytest.mark.parametrize(
    ("phase", "reads"),
    [
        ("stepped", "named"),  # rows for the next batch are on their way
        ("batch", "unnamed"),  # the others ask for rows
    ],
)
def test_a_killed_rank_is_lost_to_all_others(phase, reads):
    first, killed, third = run(PROGRAM, phase, reads, size=3, limit_s=100)
    assert killed.code == -signal.SIGKILL
    for rank, ended in ((0, first), (2, third)):
        assert ended.code == 0, ended.err
        lost = rf"said: +rank {rank} (lost|waited in vain for) (rank \d|its peers) at step [34] after .*"
        assert re.search(lost + r"\| in time: True", ended.out), ended
