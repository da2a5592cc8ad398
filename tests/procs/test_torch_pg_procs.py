"""Three real processes over gloo: what threads of one process cannot show, such as a killed rank."""

import re
import signal
from pathlib import Path

import pytest

from tests.procs.ranks import run

pytestmark = [pytest.mark.procs, pytest.mark.timeout(180)]  # three times ``import torch``, on a busy machine
PROGRAM = Path(__file__).with_name("rank_program.py")
SIZE = 3


@pytest.fixture(scope="module")
def ranks() -> list[tuple[int, dict[str, str], str]]:
    """Run the program once on three ranks; (exit code, what each case said, standard error) of each."""
    return [
        (rank.code, dict(line.split(": ", 1) for line in rank.out.splitlines()), rank.err)
        for rank in run(PROGRAM, size=SIZE, limit_s=150)
    ]


def test_all_verbs(ranks) -> None:
    assert [said.get("verbs", err) for _, said, err in ranks] == ["all verbs work"] * SIZE


def test_stock_ddp_paced_averages_as_before_and_waits_for_its_bytes(ranks) -> None:
    for _, said, err in ranks:
        crossed = re.fullmatch(r"crossed (\d+) bytes of (\d+)", said.get("stock_ddp_paced", err))
        assert crossed, err
        assert crossed[1] == crossed[2]


def test_other_sizes_end_in_an_error_on_all_ranks_not_in_an_abort(ranks) -> None:
    for _, said, err in ranks:
        text = said.get("other_sizes", err)
        assert len(set(re.findall(r"400[048] bytes", text))) == 2, text


def test_who_waits_for_a_rank_that_takes_fewer_steps_names_it(ranks) -> None:
    first, *others = [said.get("uneven_steps", err) for _, said, err in ranks]
    assert others == ["two steps"] * (SIZE - 1)
    assert re.match(r"rank 0 waited in vain for rank [12] at step 2 after \d\.\d s \(limit 2 s\)", first), first


def test_a_killed_rank_is_lost_to_all_survivors_in_time(ranks) -> None:
    for rank, (code, said, err) in enumerate(ranks):
        if rank == 1:
            assert (code, "killed" in said) == (-signal.SIGKILL, False)
            continue
        text = said.get("killed", err)
        assert code == 0, err
        told = rf"rank {rank} (lost|waited in vain for) rank \d at step 3 after .*, in time: True"
        assert re.match(told, text), text
