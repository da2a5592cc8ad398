"""A run directory like those of the demo: a language model on four workers, by stock DDP or by Omnizen."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import tomli_w

from omnizen.events import (
    EndEvent,
    EventWriter,
    NoteEvent,
    PlanEvent,
    RunEvent,
    SpanEvent,
    StepEvent,
    events_path,
)

SIZE, STEPS, PLAN_STEP, DILATION, RATE = 4, 40, 5, 2.0, 6.25e6
DENSE_BYTES, ROW_BYTES = 62_072_400, 4_587_200
LSTM = {"lstm.weight_ih_l0": [800, 200], "lstm.weight_hh_l0": [800, 200]}
BIASES = {"lstm.bias_ih_l0": [800], "lstm.bias_hh_l0": [800]}
STARTED = 1_795_000_000.0


def write_run(
    folder: Path,
    method: str = "omnizen",
    *,
    stall: dict[tuple[int, int], float] | None = None,
    slow_rank: int | None = None,
    network: str = "namespaces, shaped links",
    embedding: str = "embedding.weight",
    host: str = "worker{}",
    size: int = SIZE,
    steps: int = STEPS,
    started: float = 0.0,
    loss_from: Callable[[int], float] = lambda step: 10.8 * (step + 2) ** -0.12,
) -> Path:
    """Write all files of a run; ``stall[(rank, step)]`` are extra seconds of compute."""
    stall = stall or {}
    sparse = method == "omnizen"
    clocks = [0.4 + 0.01 * rank for rank in range(size)]
    dice = random.Random(7)
    writers = [EventWriter(events_path(folder, rank)) for rank in range(size)]
    for rank, writer in enumerate(writers):
        writer.write(
            RunEvent(
                run_id=f"{method}-1",
                rank=rank,
                size=size,
                host=host.format(rank),
                device="cpu",
                method=method,
                started_unix_s=STARTED + started + 0.01 * rank,
                network=network,
                rate_bytes_per_s=None if network == "as is" else RATE,
                dilation=DILATION,
                versions={"omnizen": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
                model={"params": 10_321_600, "name": "LanguageModel"},
            )
        )
    for step in range(steps):
        if sparse and step == PLAN_STEP:
            for writer in writers:
                writer.write(PlanEvent(step=step, path="plan.toml"))
                writer.write(NoteEvent(step=step, text="measured 5 steps; the plan is in force"))
        dense_now = not sparse or step < PLAN_STEP
        received = DENSE_BYTES if dense_now else ROW_BYTES + dice.randrange(-20_000, 20_000)
        compute = [0.24 + 0.01 * dice.random() + 0.01 * rank for rank in range(size)]
        compute = [
            c * (2.0 if rank == slow_rank else 1.0) + stall.get((rank, step), 0.0) for rank, c in enumerate(compute)
        ]
        wire = received / (RATE * 0.95)
        extra = {"select_s": 0.004, "encode_s": 0.021, "decode_s": 0.031} if not dense_now else {}
        length = max(compute) + wire + sum(extra.values()) + 0.012
        loss = loss_from(step)
        for rank, writer in enumerate(writers):
            peers = {p: received // (size - 1) for p in range(size) if p != rank} if sparse else {}
            writer.write(
                StepEvent(
                    step=step,
                    start_s=clocks[rank],
                    step_s=length,
                    compute_s=compute[rank],
                    wait_s=max(compute) - compute[rank],
                    wire_s=wire,
                    loss=loss + 0.05 * (dice.random() - 0.5),
                    samples=32,
                    tx_bytes=received,
                    rx_bytes=received,
                    rx_bytes_by_peer=peers,
                    **extra,
                )
            )
            if sparse and PLAN_STEP <= step < PLAN_STEP + 3:
                at = clocks[rank]
                for category, name, took in (
                    ("compute", "backward", compute[rank]),
                    ("wait", embedding, max(compute) - compute[rank]),
                    ("wire", embedding, wire),
                ):
                    writer.write(
                        SpanEvent(
                            step=step,
                            category=category,
                            name=name,
                            start_s=at,
                            duration_s=took,
                            thread="MainThread",
                        )
                    )
                    at += took
            clocks[rank] += length
    for writer, clock in zip(writers, clocks, strict=True):
        writer.write(EndEvent(steps=steps, seconds=clock))
        writer.close()
    if sparse:
        (folder / "facts.toml").write_text(tomli_w.dumps(facts(embedding, host, size)))
        (folder / "plan.toml").write_text(tomli_w.dumps(plan(embedding, size)))
    return folder


def facts(embedding: str, host: str, size: int) -> dict:
    def gradient(name: str, shape: list[int]) -> dict:
        return {"name": name, "kind": "dense", "shape": shape, "dtype": "float32", "density": 1.0} | {
            "densification": {"1": 1.0},
            "skewness": 1.0,
            "overlap": 1.0,
        }

    devices = [
        {"rank": r, "host": host.format(r), "device": "cpu", "name": "AMD EPYC 7B13", "cores": 2}
        | {
            "memory_bytes": 25_276_510_208,
            "merge_bytes_per_s": 4.1e8,
            "samples_per_s": {"8": 71.0, "32": 133.5 - 4 * r},
        }
        for r in range(size)
    ]
    links = [
        {
            "source": a,
            "dest": b,
            "latency_s": 0.00028 + 0.00001 * (a + b),
            "bandwidth_bytes_per_s": RATE * (0.95 - 0.004 * b),
        }
        for a in range(size)
        for b in range(size)
        if a != b
    ]
    rows = gradient(embedding, [50_000, 200]) | {
        "kind": "row-sparse",
        "density": 0.022,
        "densification": {"1": 1.0, "2": 1.81, "4": 3.32},
        "skewness": 3.4,
        "overlap": 0.21,
    }
    return {
        "version": 1,
        "created": "2026-11-30T15:00:00Z",
        "torch_version": "2.13.0",
        "world_size": size,
        "model_digest": "5f3a9c0d",
        "devices": devices,
        "links": links,
        "gradients": [rows, *(gradient(n, s) for n, s in (LSTM | BIASES).items())],
        "step": {"compute_s": 0.272, "backward_s": 0.151, "samples": 32},
    }


def plan(embedding: str, size: int) -> dict:
    def rejected(scheme: str, seconds: float, received: float) -> dict:
        reason = f"{seconds / 0.452:.1f} times as long"
        return {"scheme": scheme, "predicted_s": seconds, "rx_bytes": received, "reason": reason}

    rows = {
        "name": embedding,
        "kind": "row-sparse",
        "scheme": "agsparse",
        "predicted_s": 0.452,
        "rx_bytes": 2_666_400.0,
        "rejected": [
            rejected("zen-coo", 0.478, 2_741_000.0),
            rejected("zen-bitmap", 0.481, 2_722_000.0),
            rejected("zen-cyclic-coo", 0.693, 4_010_000.0),
            rejected("zen-cyclic-bitmap", 0.688, 3_990_000.0),
            rejected("sparcml", 0.704, 4_190_000.0),
            rejected("dense", 10.11, 60_000_000.0),
        ],
    }
    dense = [
        {
            "name": name,
            "kind": "dense",
            "scheme": "dense",
            "predicted_s": seconds,
            "rx_bytes": received,
            "rejected": [],
        }
        for names, seconds, received in ((LSTM, 0.163, 960_000.0), (BIASES, 0.0021, 4_800.0))
        for name in names
    ]
    return {
        "version": 1,
        "world_size": size,
        "model_digest": "5f3a9c0d",
        "torch_version": "2.13.0",
        "strategy": "sync",
        "bucket_bytes": 1_048_576,
        "tensors": [rows, *dense],
        "prediction": {
            "step_s": 1.08,
            "compute_s": 0.272,
            "exposed_comm_s": 0.808,
            "comm_s": 0.851,
            "rx_bytes_per_step": 4_596_000.0,
        },
        "facts_digest": "77aa",
    }
