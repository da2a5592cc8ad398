import pytest

from omnizen.comm.paced import Paced, PacedLink
from omnizen.comm.threads import run_ranks
from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.laws.comm import Launcher
from omnizen.laws.mailbox import MAILBOX_LAWS


def paced(size, body):
    return run_ranks(size, body, wrap=lambda comm: Paced(comm, PacedLink(1e10)))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("law", MAILBOX_LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("run", [run_ranks, thread_gloo_ranks, paced], ids=["threads", "gloo", "paced"])
def test_law(run, law, size) -> None:
    law.check(Launcher(run, size))
