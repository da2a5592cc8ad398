import pytest

from omnizen.report.load import RunData, load_runs
from tests.report.sample_run import write_run


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> list[RunData]:
    """DDP and Omnizen side by side; one stall of 200 ms in rank 2."""
    folder = tmp_path_factory.mktemp("demo")
    write_run(folder / "ddp", "ddp")
    write_run(folder / "omnizen", stall={(2, 20): 0.2})
    return load_runs([folder / "ddp", folder / "omnizen"])
