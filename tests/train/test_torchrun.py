"""Real processes, as torchrun starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import omnizen as oz
from omnizen.events import StepEvent, read_events
from tests.train.helpers import assert_close, assert_equal, weights
from tests.train.job import build, train

JOB = Path(__file__).with_name("job.py")
LIMIT_S = 55


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def torchrun(*agents: Sequence[str]) -> None:
    """Run agents side by side to their good end; none outlives the test."""
    started = [start_agent(*arguments) for arguments in agents]
    try:
        for agent in started:
            said, _ = agent.communicate(timeout=LIMIT_S)
            assert agent.returncode == 0, said
    finally:
        for agent in started:
            if agent.poll() is None:
                agent.terminate()  # an agent ends its workers on this signal
                agent.wait(timeout=30)


def start_agent(*arguments: str) -> subprocess.Popen[str]:
    root = JOB.parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root)])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.procs
@pytest.mark.parametrize(("nodes", "plan"), [(1, "zen-coo"), (2, "zen-coo"), (1, "lazy")])
def test_a_job_equals_one_process_on_the_union(tmp_path: Path, nodes: int, plan: str) -> None:
    port = free_port()
    common = [f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}", "--master-addr=127.0.0.1"]
    common.append(f"--master-port={port}")
    torchrun(*[[*common, f"--node-rank={node}", str(JOB), str(tmp_path), plan] for node in range(nodes)])
    first, second = (torch.load(tmp_path / f"weights-{rank}.pt", weights_only=True) for rank in range(2))
    assert_equal(first, second)
    with oz.init() as run:
        assert run.size == 1
        assert_close(first, weights(train(run, build(0), batch=8)))
    events = [read_events(tmp_path / f"events-rank{rank}.jsonl") for rank in range(2)]
    assert not any(log.problems for log in events)
    assert [sum(isinstance(e, StepEvent) and e.loss is not None for e in log.events) for log in events] == [6, 6]
