import pytest

from omnizen.comm.links import Links
from omnizen.comm.simulated import simulate_ranks
from omnizen.comm.threads import run_ranks
from omnizen.comm.torch_pg import thread_gloo_ranks
from omnizen.laws.comm import COMM_LAWS, SIZES, Launcher, check_comm
from omnizen.protocols import Later


def simulated(size, body):
    return simulate_ranks(size, body, links=Links.uniform(size, bandwidth_bytes_per_s=1e6, latency_s=1e-3)).results


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("law", COMM_LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("run", [run_ranks, simulated, thread_gloo_ranks], ids=["threads", "simulated", "gloo"])
def test_law(run, law, size) -> None:
    law.check(Launcher(run, size))


def test_a_comm_that_breaks_a_law_is_told_which() -> None:
    class Swapped:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def all_gather(self, parts):
            pending = self.inner.all_gather(parts)
            return Later(lambda: pending.wait()[::-1])

    found = check_comm(lambda size, body: run_ranks(size, body, wrap=Swapped), sizes=[3])
    broken = {verdict.law: verdict.reason for verdict in found if not verdict.held}
    assert "with 3 ranks: all_gather: torch" in broken["gathers uneven parts"]
    assert "transposes uneven parts" not in broken
