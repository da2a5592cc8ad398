"""The plan in plain words: what was measured, what was chosen and why, what was rejected, what is unsure."""

from __future__ import annotations

from collections import Counter

from omnizen.errors import UserError
from omnizen.measure.facts import Facts, GradientFacts
from omnizen.plan.lazy import LAZY, SUMMARY
from omnizen.plan.links import LinkModel
from omnizen.plan.open_loop import advice
from omnizen.plan.plan import Execution, Plan, TensorPlan
from omnizen.plan.strategies import unsure as unsure_strategies
from omnizen.plan.words import amount, duration, rate

NEAR = 0.15
"""Predictions closer than this share of each other are too close to call."""
MOST_ALTERNATIVES = 12
"""Strategies not chosen that are named."""
_BASIS = {"formula": "the formulas", "simulation": "simulation"}
NOISY = 0.2
"""A spread of a rate from here on is worth a word."""


def explain(plan: Plan, facts: Facts) -> str:
    """Explain a plan; ``facts`` are the ones it was made from.

    Raises:
        UserError: when the plan rests on other facts.
    """
    if plan.facts_digest and plan.facts_digest != facts.digest():
        raise UserError(f"this plan rests on facts {plan.facts_digest}, these are {facts.digest()}; plan again")
    parts = [
        ("Measured", measured(facts)),
        *([("Strategy", _strategy(plan.execution, plan))] if plan.execution else []),
        ("Chosen", _chosen(plan, facts)),
        ("Expected of one step", [*_expected(plan), *advice(facts)]),
        ("Unsure", _unsure(plan, facts) or ["nothing that was looked at"]),
    ]
    return "\n\n".join("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in parts)


def in_brief(plan: Plan, most: int = 3) -> str:
    """Return what a plan chose and predicts, in one line.

    Args:
        most: sparse gradients that are named one by one.
    """
    chosen = plan.execution
    schemes = ", ".join(_schemes(plan, most)) or "nothing to synchronise"
    usual = chosen is None or (chosen.strategy == "sync" and len(set(chosen.batch_shares)) < 2)
    if chosen is None or (usual and chosen.momentum is None):
        return f"{schemes}; {_step(plan)}"
    said = [_in_full(chosen)] + [schemes] * (chosen.strategy != "local")
    expected = _step(plan) + ", " if chosen.strategy == "sync" else "expected "
    return (
        f"{', '.join(said)}; {expected}{chosen.relative:.2f} times the time of plain synchronous training to the "
        "same loss"
    )


def _schemes(plan: Plan, most: int) -> list[str]:
    sparse = [t for t in plan.tensors if t.kind != "dense"]
    if len(sparse) <= most:
        said = [f"{t.name} by {t.scheme}" for t in sparse]
    else:
        said = [f"{_count(n, 'sparse gradient')} by {s}" for s, n in Counter(t.scheme for t in sparse).items()]
    for scheme, count in Counter(t.scheme for t in plan.tensors if t.kind == "dense").items():
        said.append(f"{_count(count, 'dense gradient')} by {scheme}")
    return said


def _step(plan: Plan) -> str:
    expected = plan.prediction
    step = f"predicted {duration(expected.step_s)} a step"
    return step + f", {duration(expected.compute_s)} of it compute" * bool(expected.compute_s)


def _in_full(chosen: Execution) -> str:
    """Name a strategy with its ranks, samples, steps and momentum."""
    said = chosen.title
    if chosen.strategy == "groups":
        said += f" of ranks {_ranks(chosen)}"
    if len(set(chosen.batch_shares)) > 1:
        said += f", {'/'.join(map(str, chosen.batch_shares))} samples"
    if len(set(chosen.local_steps)) > 1:
        said += f" ({'/'.join(map(str, chosen.local_steps))})"
    return said + (f", momentum {chosen.momentum:g}" if chosen.momentum is not None else "")


def _ranks(chosen: Execution) -> str:
    return "; ".join(", ".join(map(str, group)) for group in chosen.groups)


def measured(facts: Facts) -> list[str]:
    """Return what was measured, a line each."""
    lines = [f"{_count(facts.world_size, 'worker')}, torch {facts.torch_version}"]
    for device in facts.devices:
        speeds = ", ".join(f"{v:.0f} samples/s at batch {k}" for k, v in device.samples_per_s.items())
        memory = f"{device.memory_bytes / 2**30:.0f} GiB"
        lines.append(
            f"rank {device.rank}: {device.name} ({device.device}) on {device.host}, "
            f"{_count(device.cores, 'core')}, {memory}" + (f", {speeds}" if speeds else "")
        )
    if facts.world_size > 1:
        model = LinkModel.of(facts.links, facts.world_size, facts.meetings)
        slowest = min(facts.links, key=lambda link: link.bandwidth_bytes_per_s)
        fastest = max(facts.links, key=lambda link: link.bandwidth_bytes_per_s)
        lines.append(
            f"links: {rate(slowest.bandwidth_bytes_per_s)} (slowest, rank {slowest.source} to {slowest.dest}) "
            f"to {rate(fastest.bandwidth_bytes_per_s)}; {duration(model.latency_s)} a round"
        )
    for kind in ("dense", "row-sparse", "element-sparse"):
        gradients = [g for g in facts.gradients if g.kind == kind]
        if gradients:
            total = sum(g.sparsity().dense_bytes for g in gradients)
            lines.append(f"{_count(len(gradients), f'{kind} gradient')}, {amount(total)} when whole")
            lines += [f"  {_pattern(g, facts.world_size)}" for g in gradients if kind != "dense"]
    return [*lines, *doubts(facts)]


def doubts(facts: Facts) -> list[str]:
    """Return what makes measured facts unlikely, a line each.

    All workers touching exactly the same rows of every table mostly means that they drew the same batches, by a
    seed that they share; no data-parallel training is like that.
    """
    partly = [g for g in facts.gradients if g.kind != "dense" and g.density < 1]
    if facts.world_size == 1 or not partly or any(g.overlap < 1 for g in partly):
        return []
    return [
        "two workers share 100 % of the rows of every sparse gradient: did all ranks draw the same batches? Plans "
        "rest on it; let each rank draw its own (seed the batches by RANK) and measure again"
    ]


def _pattern(gradient: GradientFacts, size: int) -> str:
    pattern = gradient.sparsity()
    what = "rows" if gradient.kind == "row-sparse" else "elements"
    return (
        f"{gradient.name}: a worker touches {pattern.rows:.0f} of {pattern.num_rows} {what} "
        f"({pattern.density:.2%}), all together {pattern.union_rows(size):.0f}; two workers share "
        f"{pattern.overlap:.0%}; the fullest range holds {pattern.skewness:.1f} times its share"
    )


def _strategy(chosen: Execution, plan: Plan) -> list[str]:
    lines = [
        f"{chosen.title}: {chosen.samples_per_s:.4g} samples/s and {chosen.relative:.2f} times the time of "
        f"synchronous training with even shares to the same loss, by {_BASIS[chosen.origin]}"
    ]
    if len(set(chosen.batch_shares)) > 1:
        shares = ", ".join(map(str, chosen.batch_shares))
        lines.append(f"  samples of each rank in a step: {shares}")
    if chosen.strategy == "groups":
        lines.append(f"  groups of ranks: {_ranks(chosen)}")
    if chosen.local_steps:
        lines.append(f"  steps of each rank between two averages: {', '.join(map(str, chosen.local_steps))}")
    if chosen.momentum is not None:
        lines.append(f"  momentum {chosen.momentum:g}, at which its price was measured")
    lines.append("  in training: run.prepare(plan=FILE) with this plan's file does all of it")
    for other in plan.alternatives[:MOST_ALTERNATIVES]:
        lines.append(f"  not {other.title}: {other.reason}")
    if len(plan.alternatives) > MOST_ALTERNATIVES:
        lines.append(f"  and {len(plan.alternatives) - MOST_ALTERNATIVES} more, in the plan's file")
    return lines


def _chosen(plan: Plan, facts: Facts) -> list[str]:
    lines = []
    dense = Counter(t.scheme for t in plan.tensors if t.kind == "dense")
    for scheme, count in dense.items():
        lines.append(
            f"{_count(count, 'dense gradient')}: {scheme}, in buckets that close at {amount(plan.bucket_bytes)}"
        )
    for tensor in plan.tensors:
        if tensor.kind != "dense":
            lines += _one_tensor(tensor)
    return lines or [f"nothing to synchronise: the facts hold no gradients of {_count(facts.world_size, 'worker')}"]


def _one_tensor(tensor: TensorPlan) -> list[str]:
    from omnizen.catalog import REDUCERS

    summary = SUMMARY if tensor.scheme == LAZY else REDUCERS[tensor.scheme].summary
    tried = f", {duration(tensor.measured_s)} when tried" if tensor.measured_s is not None else ""
    how = "as the fastest of those tried" if tensor.origin == "trial" else "as the cheapest by the formulas"
    lines = [
        f"{tensor.name} ({tensor.kind}): {tensor.scheme}, {how}: {duration(tensor.predicted_s)} predicted{tried}, "
        f"{amount(tensor.rx_bytes)} received",
        f"  {tensor.scheme}: {summary}",
    ]
    for other in tensor.rejected:
        tried = f", {duration(other.measured_s)} when tried" if other.measured_s is not None else ""
        lines.append(f"  not {other.scheme}: {duration(other.predicted_s)} predicted{tried}; {other.reason}")
    return lines


def _expected(plan: Plan) -> list[str]:
    p = plan.prediction
    hidden = max(0.0, p.comm_s - p.exposed_comm_s)
    return [
        f"{duration(p.step_s)} = {duration(p.compute_s)} of computing + {duration(p.exposed_comm_s)} of waiting "
        f"for communication + {duration(p.control_s)} of control messages",
        f"{duration(p.comm_s)} of communication in all, {duration(hidden)} of it hidden behind backward",
        f"{amount(p.rx_bytes_per_step)} received by the busiest worker",
    ]


def _unsure(plan: Plan, facts: Facts) -> list[str]:
    lines = []
    if facts.step is None:
        lines.append("the time of computing was not measured, so the step's time is that of communication alone")
    estimated = sum(link.estimated for link in facts.links)
    if estimated:
        lines.append(f"{estimated} of {len(facts.links)} links were derived from others, not measured")
    if any(d.merge_rows_per_s is None or d.copy_bytes_per_s is None for d in facts.devices) or not facts.devices:
        lines.append("some rates of merging or copying were not measured and count as free")
    if any(d.code_rows_per_s is None or d.code_values_per_s is None for d in facts.devices):
        lines.append("rates of coding were not measured, so schemes that code were not considered")
    for device in facts.devices:
        worst = max(device.samples_per_s_spread.values(), default=0.0)
        if worst >= NOISY:
            lines.append(f"the rate of rank {device.rank} varied by {worst:.0%} while it was measured")
    for gradient in facts.gradients:
        most = max((int(k) for k in gradient.densification), default=1)
        if gradient.kind != "dense" and most < facts.world_size:
            lines.append(
                f"{gradient.name}: the union of {facts.world_size} workers follows from that of {most}, "
                "as if their rows were independent"
            )
    for tensor in plan.tensors:
        close = [r.scheme for r in tensor.rejected if r.predicted_s <= (1 + NEAR) * tensor.predicted_s]
        if close and plan.world_size > 1 and tensor.origin == "formula":
            lines.append(f"{tensor.name}: {', '.join(close)} predicted within {NEAR:.0%}; a trial would tell")
    return lines + unsure_strategies(plan)


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" + ("" if number == 1 else "s")
