"""Training a pruned model: masks that all ranks share, kept by weights, gradients and what travels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from omnizen.errors import Disagreement, UserError
from omnizen.measure.texts import gather_texts
from omnizen.protocols import Reducer
from omnizen.reducers.compact import Compact
from omnizen.reducers.named import Named
from omnizen.sparse.masks import Masks
from omnizen.sparse.pruning import best, magnitude_scores
from omnizen.train.control import Turn
from omnizen.train.everyone import on_everyone
from omnizen.train.lazy import LazyTable
from omnizen.train.units import DenseBucket

if TYPE_CHECKING:
    from omnizen.train.run import Run


def prune(run: Run, density: float, scores: Mapping[str, Tensor] | None, scope: str) -> Masks:
    """Average the ranks' scores, keep the best weights and use the masks (collective)."""

    run.engine.announce(Turn.MASK)

    def own() -> Mapping[str, Tensor]:
        found = magnitude_scores(run.model) if scores is None else scores
        best(found, density, scope)  # refuses what there is to refuse before anything travels
        return found

    mine = on_everyone(lambda said: run.engine.call(lambda: gather_texts(run.control, said)), own)

    def average() -> dict[str, Tensor]:
        summed = {}
        for name in sorted(mine):
            score = mine[name].float()
            summed[name] = run.gradients.all_reduce(score.to(run.gradients.device)).wait().to(score.device)
        return summed

    masks = best(run.engine.call(average), density, scope)
    use_masks(run, masks)
    return masks


def use_masks(run: Run, masks: Masks) -> None:
    """Enforce masks on the model, and give them as supports to schemes that compact (collective).

    Raises:
        Disagreement: the ranks' masks differ; on all ranks, naming the first parameter.
        UserError: a mask fits no parameter; on all ranks.
    """

    run.engine.announce(Turn.MASK)

    def gather(text: str) -> list[str]:
        return run.engine.call(lambda: gather_texts(run.control, text))

    on_everyone(gather, lambda: _check_masks(run, masks))
    lines = [f"{name}: {digest}" for name, digest in sorted(masks.digests().items())]
    columns = [text.split("\n") for text in gather("\n".join(lines))]
    for i in range(max(map(len, columns))):
        found = [column[i] if i < len(column) else "nothing" for column in columns]
        other = next((r for r, line in enumerate(found) if line != found[0]), None)
        if other is not None:
            raise Disagreement(
                f"the ranks' masks differ: {found[0]!r} on rank 0 and {found[other]!r} on rank {other}; prune "
                "equal weights by equal scores (run.prune averages scores over ranks)"
            )
    masks.enforce(run.model)
    run.optimizers[0].register_step_post_hook(lambda *_: masks.zero(run.model))
    for unit in run.engine.units:
        reducer = _compact_in(unit.reducer) if isinstance(unit, DenseBucket) else None
        if reducer is not None and isinstance(unit, DenseBucket):
            parts = [
                masks.kept.get(slot.name, torch.ones(slot.shape, dtype=torch.bool)) for slot in unit.layout.slots
            ]
            unit.state = reducer.with_support(unit.state, torch.cat([part.reshape(-1).cpu() for part in parts]))


def _check_masks(run: Run, masks: Masks) -> None:
    list(masks.of(run.model))
    for unit in run.engine.units:
        if isinstance(unit, LazyTable) and unit.name in masks.kept:
            raise UserError(
                f"{unit.name} is pulled lazily, so its rows are on their way when masks would zero them after a "
                "step; use another scheme for it, or leave it out of the masks"
            )


def _compact_in(reducer: Reducer) -> Compact | None:
    inside = reducer.reducer if isinstance(reducer, Named) else reducer
    return inside if isinstance(inside, Compact) else None
