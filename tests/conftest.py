"""Tests that start processes, make networks or a browser run one after another, in one worker of pytest-xdist."""

import pytest

ALONE = ("procs", "lab", "browser")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in ALONE):
            item.add_marker(pytest.mark.xdist_group("processes"))
