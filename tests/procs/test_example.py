"""The example runs as two processes, learns, and goes on where it ended."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.procs, pytest.mark.timeout(180)]
SCRIPT = Path(__file__).parents[2] / "examples/train.py"


def train(folder: Path, epochs: int) -> dict[int, float]:
    """Run the example on two ranks; returns the accuracy of each epoch that rank 0 speaks of."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    shared |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "--epochs", str(epochs), "--folder", str(folder)],
            env=shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=50)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait(10)
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return {int(n): float(right) for n, right in re.findall(r"epoch (\d+): (\d\.\d+) of", said[0])}


def test_the_example_learns_and_goes_on(tmp_path: Path) -> None:
    first = train(tmp_path, 2)
    assert list(first) == [1, 2]
    after = train(tmp_path, 3)
    assert list(after) == [3]
    assert after[3] > 0.8
