"""Near-ties settled by trying: a few rounds on the real links with real gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

from omnizen import catalog
from omnizen.plan.plan import Plan, Rejected, TensorPlan
from omnizen.plan.words import duration
from omnizen.protocols import Comm
from omnizen.types import Contribution, Dense, Sparse, Step


def refine(
    plan: Plan,
    comm: Comm,
    samples: Mapping[str, Contribution],
    within: float = 0.15,
    *,
    rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """Try the schemes whose predictions are close and keep the fastest (collective; all ranks get the same plan).

    A round's time is that of the slowest rank; the median over rounds counts, after one round that does not.
    Schemes take turns, so that a passing disturbance hits all of them.

    Args:
        plan: equal on all ranks.
        comm: the links that training will use.
        samples: this rank's own contribution by name of the tensor; the same names on all ranks.
        within: schemes predicted to take at most this share longer than the best are tried.
        rounds: timed reductions of each scheme.
        clock: seconds now, on the clock that the comm's transfers take time on.
    """
    tensors = [
        _try(tensor, comm, samples[tensor.name], within, rounds, clock) if tensor.name in samples else tensor
        for tensor in plan.tensors
    ]
    pairs = list(zip(plan.tensors, tensors, strict=True))
    # Sparse gradients are ready when backward ends, so their time is exposed; what was measured replaces what was
    # predicted.
    longer_s = sum(new.measured_s - old.predicted_s for old, new in pairs if new.measured_s is not None)
    p = plan.prediction
    prediction = p.model_copy(
        update={
            "step_s": max(p.compute_s + p.control_s, p.step_s + longer_s),
            "exposed_comm_s": max(0.0, p.exposed_comm_s + longer_s),
            "comm_s": max(0.0, p.comm_s + longer_s),
            "rx_bytes_per_step": p.rx_bytes_per_step + sum(new.rx_bytes - old.rx_bytes for old, new in pairs),
        }
    )
    return plan.model_copy(update={"tensors": tensors, "prediction": prediction})


def _try(
    tensor: TensorPlan,
    comm: Comm,
    sample: Contribution,
    within: float,
    rounds: int,
    clock: Callable[[], float],
) -> TensorPlan:
    limit_s = (1 + within) * tensor.predicted_s
    close = [r.scheme for r in tensor.rejected if r.predicted_s <= limit_s]
    if tensor.kind == "dense" or not close or comm.size == 1:
        return tensor
    names = [tensor.scheme, *close]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in names:
            slowest_s = _one_round(name, comm, sample, Step(turn, name=tensor.name), clock)
            if turn > 0:  # the first round pays for connections, buffers and compilation
                seconds[name].append(slowest_s)
    measured = {name: median(times) for name, times in seconds.items()}
    return _settle(tensor, measured)


def _one_round(name: str, comm: Comm, sample: Contribution, step: Step, clock: Callable[[], float]) -> float:
    reducer = catalog.reducer(name)
    comm.barrier()
    began = clock()
    if isinstance(sample, Sparse) and Sparse not in reducer.takes:
        sample = Dense(sample.to_dense())  # part of what the scheme costs
    reducer.start(sample, reducer.init(sample), comm, step).wait()
    own = torch.tensor([clock() - began], dtype=torch.float64, device=comm.device)
    return max(float(part) for (part,) in comm.all_gather([own]).wait())


def _settle(tensor: TensorPlan, measured: Mapping[str, float]) -> TensorPlan:
    """Make the fastest of the measured schemes the chosen one; the one before joins the rejected."""
    best = min(measured, key=lambda name: measured[name])  # the planned scheme comes first, so it wins a tie
    outcomes = {r.scheme: (r.predicted_s, r.rx_bytes, r.reason) for r in tensor.rejected}
    outcomes[tensor.scheme] = (tensor.predicted_s, tensor.rx_bytes, "")
    rejected = []
    for scheme, (predicted_s, rx_bytes, reason) in outcomes.items():
        if scheme == best:
            continue
        if scheme in measured:
            reason = f"tried: {duration(measured[scheme])} against {duration(measured[best])}"
        rejected.append(
            Rejected(
                scheme=scheme,
                predicted_s=predicted_s,
                rx_bytes=rx_bytes,
                reason=reason,
                measured_s=measured.get(scheme),
            )
        )
    predicted_s, rx_bytes, _ = outcomes[best]
    return tensor.model_copy(
        update={
            "scheme": best,
            "predicted_s": predicted_s,
            "rx_bytes": rx_bytes,
            "origin": "trial",
            "measured_s": measured[best],
            "rejected": sorted(rejected, key=lambda r: r.predicted_s),
        }
    )
