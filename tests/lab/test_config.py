from pathlib import Path

import pytest

from omnizen.errors import UserError
from omnizen.lab import LabConfig, Link
from omnizen.lab.quota import Quotas, find_parent, quota_and_period


def test_eight_hosts_on_two_cores_are_four_times_slower() -> None:
    config = LabConfig(hosts=8, rate="100mbit", dilation="auto")
    assert config.factor(2) == 4.0
    assert config.shares(2) is None
    assert config.shaped(2) == (Link(25e6, 25e6),) * 8
    assert config.facts(2) == (
        "8 hosts on 2 cores: compute is 4x slower than on 8 machines, so links run at 25 Mbit/s for 100 Mbit/s; "
        "times divided by 4 are those of real machines"
    )


def test_enough_cores_need_no_dilation() -> None:
    config = LabConfig(hosts=2, dilation="auto")
    assert (config.factor(2), config.shaped(2)[0], config.shares(2)) == (1.0, Link(100e6, 100e6), None)
    assert config.facts(2) == "2 hosts on 2 cores: compute is as fast as on 2 machines; links run at 100 Mbit/s"


def test_quotas_fit_the_cores_and_keep_the_proportions() -> None:
    config = LabConfig(hosts=4, cpu=(1, 1, 1, 0.2), dilation="auto")
    assert config.factor(2) == pytest.approx(1.6)
    shares = config.shares(2)
    assert shares == pytest.approx((0.625, 0.625, 0.625, 0.125))
    assert sum(shares) == pytest.approx(2.0)


def test_speeds_that_fit_are_quotas_as_they_stand() -> None:
    assert LabConfig(hosts=2, cpu=(1, 0.5)).shares(4) == (1.0, 0.5)


def test_without_dilation_quotas_fit_but_links_keep_their_rate() -> None:
    config = LabConfig(hosts=4, cpu=(1, 1, 1, 1))
    assert config.shares(2) == (0.5,) * 4
    assert config.shaped(2) == (Link(100e6, 100e6),) * 4
    assert "flatters methods that compute much" in config.facts(2)


def test_more_dilation_than_the_cores_ask_for_slows_processors_too() -> None:
    assert LabConfig(hosts=2, dilation=4.0).shares(2) == (0.25, 0.25)
    assert LabConfig(hosts=8, dilation=4.0).shares(2) is None


def test_a_host_may_have_its_own_link() -> None:
    config = LabConfig(hosts=2, links={1: Link.of("10mbit", "50mbit")}, dilation=2.0)
    assert config.shaped(2) == (Link(50e6, 50e6), Link(5e6, 25e6))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hosts": 0}, "between 1 and 250 hosts, got 0"),
        ({"hosts": 251}, "got 251"),
        ({"hosts": 2, "rate": "100"}, "has no unit"),
        ({"hosts": 2, "links": {2: Link(1e6, 1e6)}}, "host 2; with 2 hosts they are 0 to 1"),
        ({"hosts": 2, "cpu": (1,)}, "one speed for each of 2 hosts, got 1"),
        ({"hosts": 2, "cpu": (1, 0)}, "above 0 and at most 1"),
        ({"hosts": 2, "cpu": (1, 2)}, "got 2"),
        ({"hosts": 2, "cpu": (1, float("nan"))}, "got nan"),
        ({"hosts": 2, "dilation": 0.5}, "at least 1, got 0.5"),
        ({"hosts": 2, "dilation": "autto"}, "got 'autto'"),
        ({"hosts": 2, "dilation": float("inf")}, "got inf"),
        ({"hosts": 2, "timeout_s": float("inf")}, "timeout_s must be a number of seconds"),
        ({"hosts": 2, "grace_s": -1.0}, "grace_s must be"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        LabConfig(**settings)


def test_a_rate_may_become_too_low_by_dilation() -> None:
    with pytest.raises(UserError, match="after dilation"):
        LabConfig(hosts=2, rate="2kbit", dilation=4.0).shaped(2)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25, 0.1, 0.05, 0.033, 0.0021])
def test_quotas_give_the_share_within_what_the_kernel_takes(share: float) -> None:
    quota_us, period_us = quota_and_period(share)
    assert quota_us >= 1_000
    assert 10_000 <= period_us <= 1_000_000
    assert quota_us / period_us == pytest.approx(share, rel=1e-3)


def test_a_share_below_the_kernels_limit_is_refused() -> None:
    with pytest.raises(UserError, match="less than a quota can give"):
        quota_and_period(0.0005)


def test_the_controller_is_found_in_either_version(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")
    one = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
    two = f"cgroup2 {tmp_path} cgroup2 rw,nosuid 0 0\n"
    assert find_parent(two + one) == (Path("/sys/fs/cgroup/cpu,cpuacct"), 1)
    assert find_parent(two) == (tmp_path, 2)
    (tmp_path / "cgroup.controllers").write_text("")
    assert find_parent(two) is None


def test_version_two_groups_are_written_as_that_version_wants(tmp_path: Path) -> None:
    Quotas("omnizen-test", tmp_path, 2).make((0.5, 0.04))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "omnizen-test/cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "omnizen-test/0/cpu.max").read_text() == "5000 10000"
    assert (tmp_path / "omnizen-test/1/cpu.max").read_text() == "1000 25000"
