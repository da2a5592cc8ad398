"""What formulas cannot tell is settled by trying: a few rounds on the real links with real gradients."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

import torch

from omnizen import catalog
from omnizen.plan.lazy import LAZY
from omnizen.plan.plan import Plan, Rejected, TensorPlan
from omnizen.plan.words import duration
from omnizen.protocols import Comm
from omnizen.types import Contribution, Dense, Sparse, Step

MOST = 8
"""Schemes that are tried for one tensor."""
ROUGH_WIRE, ROUGH_REST = 1.07, 1.75
"""Factors by which predictions may be wrong, up or down: seconds of bytes on the links, and all other seconds (the
processor, rounds, hand-overs between threads). A scheme is tried if it could then be the fastest."""
LOST, BEHIND, SLOWER = 1.5, 1.15, 1.08
"""Schemes that took more than so many times as long as the best are tried no further: after one, after ``LEAST``
and after twice as many rounds, or ``MORE`` times as many where rounds take less than ``LONG_S`` and vary more."""
LONG_S, MORE = 0.1, 8
CLEARLY = 0.98
"""Of two schemes one is faster when it takes at most this share of the other's time; smaller gains may be noise."""
PRIOR = 0.07
"""How far predictions of two schemes may be off beside each other (standard deviation): what few or scattered
rounds say is weighed against what was predicted."""
ONCE = 0.05
"""Scatter (standard deviation) that rounds are taken to have where there is one of each."""
SURE = 0.007
"""Medians that are known so well (standard error) need no more rounds."""
ENOUGH_S = 10.0
"""Rounds are repeated within about this time, or the tensor's share of the budget, but at least ``LEAST`` times.
Milliseconds vary by half: only hundreds of rounds tell some percent apart."""
LEAST = 3


def refine(
    plan: Plan,
    comm: Comm,
    samples: Mapping[str, Contribution],
    *,
    rounds: int = 400,
    budget_s: float = 30.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """Try the schemes that could be the fastest and keep the one that is (collective; all ranks get the same plan).

    A round's time is that of the slowest rank; the median over rounds counts, after one round that does not.
    Schemes take turns, so that a passing disturbance hits all of them. What few or scattered rounds say is weighed
    against what was predicted; where that cannot tell schemes apart, the plan's order decides: predicted seconds,
    then the simpler scheme.

    Args:
        plan: equal on all ranks.
        comm: the links that training will use.
        samples: this rank's own contribution by name of the tensor; the same names on all ranks.
        rounds: timed reductions of each scheme at most.
        budget_s: fewer rounds are made, or a tensor is not tried, where more would take longer than this in all.
        clock: seconds now, on the clock that the comm's transfers take time on.
    """
    tensors, left_s = [], budget_s
    of_tensor = {t.name: _candidates(t) if t.name in samples and comm.size > 1 else [] for t in plan.tensors}
    share_s = min(ENOUGH_S, budget_s / max(1, sum(len(names) > 1 for names in of_tensor.values())))
    for tensor in plan.tensors:
        names = of_tensor[tensor.name]
        if tensor.predicted_s:  # rather few schemes told apart than many not
            names = names[: max(2, int(left_s / ((LEAST + 1) * tensor.predicted_s)))]
        possible = int(left_s / (max(len(names), 1) * tensor.predicted_s)) - 1 if tensor.predicted_s else rounds
        if len(names) > 1 and possible >= 1:
            turns = min(rounds, possible)
            seconds = _take_turns(tensor.name, names, comm, samples[tensor.name], turns, share_s, clock)
            left_s -= sum(map(sum, seconds.values()))
            tensor = _settle(
                tensor, {name: median(times[1:]) for name, times in seconds.items()}, weigh(tensor, seconds)
            )
        tensors.append(tensor)
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


def _candidates(tensor: TensorPlan) -> list[str]:
    """Return the planned scheme and those that could be faster, in the plan's order."""
    if tensor.kind == "dense" or tensor.scheme == LAZY:  # which is no reduction that could be tried by itself
        return []
    longest_s = _if_wrong_by(tensor, ROUGH_WIRE, ROUGH_REST)
    others = [r for r in tensor.rejected if r.scheme != LAZY]
    could_win = [r.scheme for r in others if _if_wrong_by(r, 1 / ROUGH_WIRE, 1 / ROUGH_REST) <= longest_s]
    return [tensor.scheme, *could_win][:MOST]


def _if_wrong_by(scheme: TensorPlan | Rejected, wire: float, rest: float) -> float:
    """Return the seconds of a scheme if both parts of its prediction are wrong by these factors."""
    wire_s = scheme.predicted_s if scheme.wire_s is None else scheme.wire_s
    return wire * wire_s + rest * (scheme.predicted_s - wire_s)


def _take_turns(
    tensor: str,
    names: Sequence[str],
    comm: Comm,
    sample: Contribution,
    rounds: int,
    enough_s: float,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Return the seconds of each scheme's rounds; the first pays for connections, buffers and compilation.

    Args:
        rounds: the most after the first.
        enough_s: after ``LEAST`` rounds none is begun that would end later than this.
    """
    seconds: dict[str, list[float]] = {name: [] for name in names}
    left, spent_s, turn = list(names), 0.0, 0
    order = random.Random(tensor)  # equal on all ranks
    while turn <= rounds:
        for name in order.sample(left, len(left)):  # nobody always follows the same other, or itself
            seconds[name].append(_one_round(name, comm, sample, Step(turn, name=tensor), clock))
            spent_s += seconds[name][-1]
        medians = {name: median(seconds[name][1:] or seconds[name]) for name in left}
        best_s = min(medians.values())
        some = 1 if best_s >= LONG_S else MORE
        allowed = {some: LOST, LEAST * some: BEHIND, 2 * LEAST * some: SLOWER}.get(turn)
        if allowed is not None:
            left = [name for name in left if medians[name] <= allowed * best_s]
        if turn >= LEAST and (len(left) == 1 or spent_s + sum(medians[name] for name in left) > enough_s):
            break
        if turn >= 2 * LEAST * some and _standard_error([seconds[name][1:] for name in left]) < SURE:
            break
        turn += 1
    return seconds


def _one_round(name: str, comm: Comm, sample: Contribution, step: Step, clock: Callable[[], float]) -> float:
    reducer = catalog.reducer(name)
    comm.barrier()
    began = clock()
    if isinstance(sample, Sparse) and Sparse not in reducer.takes:
        sample = Dense(sample.to_dense())  # part of what the scheme costs
    reducer.start(sample, reducer.init(sample), comm, step).wait()
    own = torch.tensor([clock() - began], dtype=torch.float64, device=comm.device)
    return max(float(part) for (part,) in comm.all_gather([own]).wait())


def weigh(tensor: TensorPlan, seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return what each scheme that took all turns is expected to take, from its rounds and from its prediction.

    Those that were dropped are left out: they could only win because later turns were slower. Predictions count in
    proportion to each other, and the less the more rounds there were and the less these scattered.

    Args:
        seconds: of each scheme's rounds, of which the first does not count; in the plan's order.
    """
    most = max(len(times) for times in seconds.values())
    stayed = {name: times[1:] for name, times in seconds.items() if len(times) == most}
    predicted = {r.scheme: r.predicted_s for r in tensor.rejected} | {tensor.scheme: tensor.predicted_s}
    logs = {name: math.log(max(median(times), 1e-9)) for name, times in stayed.items()}
    said = {name: math.log(max(predicted[name], 1e-9)) for name in stayed}
    off = fmean(logs[name] - said[name] for name in stayed)
    trust = PRIOR**2 / (PRIOR**2 + _standard_error(list(stayed.values())) ** 2)
    return {name: math.exp(trust * logs[name] + (1 - trust) * (said[name] + off)) for name in stayed}


def _standard_error(rounds: Sequence[Sequence[float]]) -> float:
    """Return the relative standard error of the medians of schemes that took equally many rounds.

    Few rounds show their own scatter badly, and what disturbs one scheme disturbs all: they are taken together.
    """
    count = len(rounds[0])
    scatter = median(1.25 * fmean(abs(t - median(times)) for t in times) / median(times) for times in rounds)
    return 1.25 * (scatter if count > 1 else ONCE) / math.sqrt(count)


def _settle(tensor: TensorPlan, measured: Mapping[str, float], expected: Mapping[str, float]) -> TensorPlan:
    """Choose the first in the plan's order than which none is clearly faster; the one before joins the rejected.

    Args:
        expected: what the schemes that were tried to the end should take, in the plan's order; one is chosen.
    """
    fastest_s = min(expected.values())
    best = next(n for n, s in expected.items() if fastest_s > CLEARLY * s or s == fastest_s)
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
