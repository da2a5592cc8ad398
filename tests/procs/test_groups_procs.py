"""Three real processes in compute groups; one is killed, the others train on."""

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from omnizen.events import NoteEvent, read_events

pytestmark = [pytest.mark.procs, pytest.mark.timeout(180)]
PROGRAM = Path(__file__).with_name("groups_program.py")
SAMPLES, EPOCHS, VICTIM, SIZE = 60, 3, 2, 3


def test_the_others_train_on_when_a_process_is_killed(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(SIZE)}
    shared |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path)],
            env=shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        said = [rank.communicate(timeout=150)[0] for rank in started]
    finally:
        for rank in started:
            if rank.poll() is None:
                rank.kill()
                rank.wait(10)
    assert [rank.returncode for rank in started] == [0, 0, -signal.SIGKILL], said
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name]), name
    # three batches of two went with the killed one; what it had drawn and not trained on was read by the others
    read = Counter(first["read"] + second["read"])
    assert sum(read.values()) == SAMPLES * EPOCHS - 3 * 2
    assert max(read.values()) == EPOCHS
    logs = [read_events(tmp_path / f"events-rank{rank}.jsonl") for rank in range(2)]
    notes = [event.text for log in logs for event in log.events if isinstance(event, NoteEvent)]
    assert any(f"rank {VICTIM} is lost: rank 0 serves shard 2 from now on" in text for text in notes), notes
