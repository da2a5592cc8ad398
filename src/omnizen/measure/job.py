"""All facts of one job: devices, links, and, with the user's model, rates, gradients and the time of a step."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import count
from statistics import fmean

import torch
from torch import Tensor

from omnizen.measure.crowd import measure_crowd
from omnizen.measure.device import measure_devices
from omnizen.measure.facts import DeviceFacts, Facts, GradientFacts, Kind, StepFacts
from omnizen.measure.gradient import PatternProbe, classify, nonzero_indices
from omnizen.measure.links import measure_links, measure_meetings
from omnizen.measure.model import Rate, enough, measure_rate, model_digest
from omnizen.measure.subject import Subject
from omnizen.measure.texts import gather_texts
from omnizen.protocols import Comm

KINDS: tuple[Kind, ...] = ("dense", "element-sparse", "row-sparse")
"""From the one that fits every gradient to the one that asks most of it."""


def measure_job(comm: Comm, subject: Subject | None = None, *, budget_s: float = 10.0) -> Facts:
    """Measure everything that a plan needs (collective; equal on all ranks).

    Args:
        comm: all ranks of the job.
        subject: the user's model; without it the facts are those of devices and links alone.
        budget_s: about how long measuring may take; a fifth of it goes to the links.
    """
    links = measure_links(comm, budget_s / 5)
    devices = measure_devices(comm)
    facts = Facts(
        created=gather_texts(comm, datetime.now(UTC).isoformat(timespec="seconds"))[0],
        torch_version=str(torch.__version__),
        world_size=comm.size,
        devices=devices,
        links=links,
        meetings=measure_meetings(comm),
    )
    if subject is None:
        return facts
    rated = [_with_rates(d, mine) for d, mine in zip(devices, _rates(comm, subject, budget_s / 2), strict=True)]
    step = measure_step(comm, subject)
    gradients = measure_gradients(comm, subject)
    subject.model.zero_grad(set_to_none=True)
    return facts.model_copy(
        update={
            "model_digest": model_digest(subject.model),
            "devices": rated,
            "gradients": gradients,
            "step": step,
            "crowd": measure_crowd(comm, max(1, sum(g.nbytes for g in gradients) // comm.size)),
        }
    )


def _rates(comm: Comm, subject: Subject, budget_s: float) -> list[dict[int, Rate]]:
    """Measure this rank's rate at each batch size, all ranks at once; returns everyone's."""
    comm.barrier()
    first = {size: batches[0] for size, batches in subject.batches.items()}
    mine = measure_rate(subject.run, first, budget_s=budget_s, device=comm.device)
    texts = gather_texts(
        comm, json.dumps({size: [r.samples_per_s, r.spread, r.step_s] for size, r in mine.items()})
    )
    return [{int(size): Rate(*numbers) for size, numbers in json.loads(text).items()} for text in texts]


def _with_rates(device: DeviceFacts, rates: Mapping[int, Rate]) -> DeviceFacts:
    return device.model_copy(
        update={
            "samples_per_s": {str(size): rate.samples_per_s for size, rate in rates.items()},
            "samples_per_s_spread": {str(size): rate.spread for size, rate in rates.items()},
        }
    )


def measure_step(
    comm: Comm, subject: Subject, *, repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> StepFacts:
    """Time forward and backward at the largest batch size with all ranks running, without communication.

    Args:
        repeats: steps, more where they are short; the mean counts, and the slowest rank's mean is the step's.
    """
    size = max(subject.batches)
    cuda = comm.device.type == "cuda"

    def now() -> float:
        if cuda:
            torch.cuda.synchronize(comm.device)
        return clock()

    forward: list[float] = []
    backward: list[float] = []
    comm.barrier()
    for turn in count():
        if enough([a + b for a, b in zip(forward, backward, strict=True)], repeats):
            break
        batch = subject.batches[size][turn % len(subject.batches[size])]
        subject.model.zero_grad(set_to_none=True)
        began = now()
        loss = subject.loss(subject.model, batch)
        middle = now()
        loss.backward()
        if turn > 0:  # the first step pays for memory and set-up
            forward.append(middle - began)
            backward.append(now() - middle)
    own = torch.tensor([fmean(forward), fmean(backward)], dtype=torch.float64, device=comm.device)
    slowest = max((part.tolist() for (part,) in comm.all_gather([own]).wait()), key=sum)
    return StepFacts(compute_s=sum(slowest), backward_s=slowest[1], samples=size)


def measure_gradients(comm: Comm, subject: Subject) -> list[GradientFacts]:
    """Look at the gradients of one step for each batch of the largest size (collective).

    Ranks may see different numbers of batches; the fewest count. A parameter without a gradient counts as one that
    touched nothing.
    """
    batches = subject.batches[max(subject.batches)]
    counts = [int(part) for (part,) in comm.all_gather([torch.tensor([len(batches)], device=comm.device)]).wait()]
    probe = PatternProbe(comm)
    kinds: dict[str, Kind] = {}
    for batch in batches[: min(counts)]:
        subject.run(batch)
        trained = {name: p for name, p in subject.model.named_parameters() if p.requires_grad}
        kinds = kinds or _agreed_kinds(comm, {name: p.grad for name, p in trained.items()})
        for name, parameter in trained.items():
            kind, shape = kinds[name], tuple(parameter.shape)
            by_row = kind == "row-sparse"
            grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            probe.observe(
                name,
                nonzero_indices(grad.detach(), kind),
                num_rows=shape[0] if by_row else parameter.numel(),
                width=math.prod(shape[1:]) if by_row else 1,
                itemsize=parameter.element_size(),
                shape=shape,
                dtype=str(parameter.dtype).removeprefix("torch."),
            )
    return probe.finish()


def _agreed_kinds(comm: Comm, grads: Mapping[str, Tensor | None]) -> dict[str, Kind]:
    """Let ranks agree on each gradient's kind: the one that fits all of theirs; who has no gradient has no say."""
    said = [-1 if grad is None else KINDS.index(classify(grad)) for grad in grads.values()]
    gathered = comm.all_gather([torch.tensor(said, dtype=torch.int64, device=comm.device)]).wait()
    columns = zip(*(part.tolist() for (part,) in gathered), strict=True)
    votes = [[vote for vote in column if vote >= 0] for column in columns]
    return {name: KINDS[min(vote, default=0)] for name, vote in zip(grads, votes, strict=True)}
