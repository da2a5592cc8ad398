"""Groups as processes: one is paused and comes back, one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.train.groups import group_job
from tests.train.helpers import assert_equal
from tests.train.test_torchrun import free_port

RANKS, LIMIT_S = 3, 50
PAUSE_S = 1.5
"""How long a machine is paused; a time limit must be longer, else it does not matter how long."""


def start(rank: int, port: int, out: Path) -> subprocess.Popen[str]:
    job = Path(group_job.__file__)
    paths = os.pathsep.join([str(job.parents[3] / "src"), str(job.parents[3])])
    env = {
        **os.environ,
        "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    command = [sys.executable, str(job), str(out)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read(out: Path, rank: int) -> list[list[object]]:
    path = out / f"read-{rank}.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the last one may be half written
    return [json.loads(line) for line in lines]


def await_steps(out: Path, rank: int, steps: int, started: list[subprocess.Popen[str]]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while len(read(out, rank)) < steps:
        assert time.monotonic() < deadline_s
        for each in started:
            assert each.poll() is None, each.communicate()[0]
        time.sleep(0.01)


@pytest.mark.procs
def test_training_survives_a_pause_and_a_killed_group(tmp_path: Path) -> None:
    port, gone, paused = free_port(), 0, 1  # rank 0 has the order of samples, the meetings and torch's store
    started = [start(rank, port, tmp_path) for rank in range(RANKS)]
    try:
        await_steps(tmp_path, paused, 3, started)
        started[paused].send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        at = len(read(tmp_path, paused))
        started[paused].send_signal(signal.SIGCONT)
        await_steps(tmp_path, paused, at + 3, started)
        started[gone].send_signal(signal.SIGKILL)
        said = [each.communicate(timeout=LIMIT_S)[0] for each in started]
    finally:
        for each in started:
            if each.poll() is None:
                each.kill()
                each.communicate(timeout=LIMIT_S)
    there = [rank for rank in range(RANKS) if rank != gone]
    for rank in there:
        assert started[rank].returncode == 0, said[rank]
    counted = Counter((epoch, i) for rank in range(RANKS) for epoch, batch in read(tmp_path, rank) for i in batch)
    every = {(epoch, i) for epoch in range(group_job.EPOCHS) for i in range(group_job.SAMPLES)}
    # a batch of the step that rank 0 was in counts once, or twice, or rank 0 had no time to write it down
    assert len(every - set(counted)) <= group_job.BATCH
    assert counted.total() - len(counted) <= group_job.BATCH
    for rank in there:
        notes = json.loads((tmp_path / f"notes-{rank}.json").read_text())
        assert any("rank 0 is lost" in note for note in notes)
        assert not any("rank 1 is lost" in note or "rank 2 is lost" in note for note in notes)
    weights = [torch.load(tmp_path / f"weights-{rank}.pt", weights_only=True) for rank in there]
    assert_equal(*weights)
