"""The laws of reducers: see the docstring of ``protocols.Reducer``."""

from __future__ import annotations

import copy
import functools
import io
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from omnizen.codecs.balance import imbalance, owner_counts
from omnizen.codecs.ownership import PARTITIONS, Partition
from omnizen.comm.threads import run_ranks
from omnizen.errors import PeerLost
from omnizen.kernels.nonzero_rows import nonzero_rows
from omnizen.laws.law import Law, LawBroken, Verdict, verdicts
from omnizen.laws.samples import contributions, same
from omnizen.laws.trial import SIZES, TIMEOUT_S, Trial, Trials, run_on_ranks
from omnizen.protocols import Comm, Reducer
from omnizen.reducers.blocks import BLOCK_ELEMENTS, num_blocks, rows_in_block, touched
from omnizen.reducers.ranges import profile
from omnizen.types import Contribution, Dense, Imbalance, Sparse, Sparsity, State, Step, Traffic

TRAFFIC_TOLERANCE = 0.03
"""What a formula may leave out of a measured pattern."""
ZIPF_SHAPES = ({"num_rows": 100_000, "rows": 20_000, "width": 2}, {"num_rows": 20_000, "rows": 5_000, "width": 32})
"""Of the contributions whose traffic is compared with the meter: narrow rows, and rows worth factoring."""


def keeps_shape_and_type(trials: Trials) -> None:
    """The average has the shape and dtype of the contribution; its indices are ascending int64.

    Of a dense contribution some elements may come back: a sparse one of width 1 over the flat tensor.
    """
    for trial in trials.all():
        for rank, at in enumerate(trial.ranks):
            value = at.result.value
            if value.values.dtype != at.given.values.dtype:
                raise LawBroken(f"{trial.where}: {at.given.values.dtype} came back as {value.values.dtype}")
            if _shape(value) != _shape(at.given) and not _elements_of(value, at.given):
                raise LawBroken(f"{trial.where}: shape {_shape(at.given)} came back as {_shape(value)}")
            if isinstance(value, Sparse):
                rows = value.indices
                if rows.dtype != torch.int64 or not bool((rows[1:] > rows[:-1]).all()):
                    raise LawBroken(f"{trial.where}: rank {rank} got indices that are not ascending int64")


def is_the_average_as_declared(trials: Trials) -> None:
    """When exact, the value is the dense average up to summation order."""
    if not trials.reducer.exact:
        return
    for trial in trials.all():
        given = [_whole(at.given).reshape(-1) for at in trial.ranks]
        dtype = trial.ranks[0].given.values.dtype
        expected = (sum(given[1:], given[0].clone()) / trial.size).to(dtype)
        scale = float(torch.nan_to_num(torch.stack(given), 0.0, 0.0, 0.0).abs().max()) if given[0].numel() else 0.0
        limit = 4 * trial.size * torch.finfo(dtype).eps * max(1.0, scale)
        for rank, at in enumerate(trial.ranks):
            got = _whole(at.result.value).reshape(-1)
            off = torch.where(_alike(got, expected.double()), 0.0, (got - expected).abs())
            if bool((torch.isnan(off) | (off > limit)).any()):
                worst = int(torch.nan_to_num(off, float("inf"), float("inf")).argmax())
                raise LawBroken(
                    f"{trial.where}: rank {rank} has {float(got[worst]):.6g} at element {worst}, "
                    f"the average is {float(expected[worst]):.6g}"
                )


def agrees_as_declared(trials: Trials) -> None:
    """When it agrees, all ranks get the same bits."""
    if not trials.reducer.agrees:
        return
    for trial in trials.all():
        first = trial.ranks[0].result.value
        for rank, at in enumerate(trial.ranks):
            value = at.result.value
            alike = type(value) is type(first) and same(value.values, first.values)
            if not alike or (isinstance(value, Sparse) and not same(value.indices, _indices(first))):
                raise LawBroken(f"{trial.where}: ranks 0 and {rank} got different values")


def conserves_as_declared(trials: Trials) -> None:
    """When it conserves, the mean of the values is the mean of what was sent."""
    if not trials.reducer.conserves:
        return
    for trial in trials.all():
        if trial.sample == "not finite":
            continue
        sent = torch.stack([_whole(at.result.sent or at.given).reshape(-1) for at in trial.ranks]).mean(0)
        value = torch.stack([_whole(at.result.value).reshape(-1) for at in trial.ranks]).mean(0)
        precision = torch.finfo(trial.ranks[0].given.values.dtype).eps
        if not trials.reducer.exact:  # what is rounded for the wire is summed in float32
            precision = max(precision, torch.finfo(torch.float32).eps)
        limit = 8 * trial.size * precision
        off = float((sent - value).abs().max()) if sent.numel() else 0.0
        if not off <= limit * max(1.0, float(sent.abs().max()) if sent.numel() else 1.0):
            raise LawBroken(f"{trial.where}: mean of values and mean of what was sent differ by {off:.3g}")


def depends_on_the_mean_alone(trials: Trials) -> None:
    """A reducer that calls itself ``linear`` gives what it would give if every rank had contributed the average."""
    if not getattr(trials.reducer, "linear", False):
        return
    for kind, size in itertools.product(trials.reducer.takes, trials.sizes):
        given = [contributions(kind)["matrix"](rank) for rank in range(size)]
        mean = torch.stack([_whole(x) for x in given]).mean(0)
        rows = torch.arange(mean.shape[0])
        same_for_all = Dense(mean.float()) if kind is Dense else Sparse(rows, mean.float(), mean.shape[0])
        apart = trials.run("matrix", lambda rank, given=given: given[rank], size)  # type: ignore[misc]
        alike = trials.run("their mean", lambda _, x=same_for_all: x, size)  # type: ignore[misc]
        a, b = (_whole(trial.ranks[0].result.value).reshape(-1) for trial in (apart, alike))
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-5):
            raise LawBroken(f"{apart.where}: off by {float((a - b).abs().max()):.3g} when all contribute the mean")


def leaves_input_alone(trials: Trials) -> None:
    """The contribution is not changed, and the result shares no memory with it."""
    for trial in trials.all():
        for rank, at in enumerate(trial.ranks):
            if not same(at.given.values, at.after.values):
                raise LawBroken(f"{trial.where}: rank {rank}'s contribution was changed, or shared with the result")
            if isinstance(at.given, Sparse) and not same(at.given.indices, _indices(at.after)):
                raise LawBroken(f"{trial.where}: rank {rank}'s indices were changed")


def traffic_is_predicted(trials: Trials, tolerance: float = TRAFFIC_TOLERANCE) -> None:
    """``traffic`` gives the metered bytes of the busiest rank (within 3 %) and the rounds.

    What a lossy reducer keeps of a dense tensor depends on its values, which no pattern tells; predictions take
    them for alike everywhere, so that is what it is given.
    """
    for kind, size, shape in itertools.product(trials.reducer.takes, trials.sizes, ZIPF_SHAPES):
        inputs = zipf_contributions(kind, size, **shape)
        if kind is Dense and not trials.reducer.exact:
            inputs = [even_values(x, rank) for rank, x in enumerate(inputs)]
        pattern = measured_pattern(inputs)
        trial = trials.run("Zipf rows", lambda rank, inputs=inputs: inputs[rank], size)  # type: ignore[misc]
        predicted = trials.reducer.traffic(pattern, size)
        metered = busiest(trial)
        for way, say, saw in (
            ("received", predicted.rx_bytes, metered.rx_bytes),
            ("sent", predicted.tx_bytes, metered.tx_bytes),
        ):
            if abs(say - saw) > tolerance * saw + 1e-6:
                raise LawBroken(f"{trial.where}: predicted {say:.0f} bytes {way}, metered {saw:.0f}")
        if predicted.rounds != metered.rounds:
            raise LawBroken(f"{trial.where}: predicted {predicted.rounds} rounds, metered {metered.rounds}")


def resumes(trials: Trials) -> None:
    """Four steps equal two steps, a save and a load of the state, and two more, bit for bit."""
    reducer = trials.reducer

    def body(comm: Comm, save_after: int | None) -> list[Contribution]:
        values = []
        x = contributions(reducer.takes[0])["plain"](comm.rank)
        state = reducer.init(x)
        for n in range(4):
            reduced = reducer.start(x, state, comm, Step(n, shared_seed=1, name="law")).wait()
            state = _through_a_file(reduced.state) if n == save_after else reduced.state
            values.append(copy.deepcopy(reduced.value))
        return values

    straight = run_on_ranks(3, lambda comm: body(comm, None))
    resumed = run_on_ranks(3, lambda comm: body(comm, 1))
    for rank, (a, b) in enumerate(zip(straight, resumed, strict=True)):
        for n, (x, y) in enumerate(zip(a, b, strict=True)):
            if not same(_whole(x), _whole(y)):
                raise LawBroken(f"rank {rank}: step {n} differs after the state was saved and loaded behind step 1")


def reports_a_lost_peer(trials: Trials) -> None:
    """When a peer ends, the others get ``PeerLost`` and do not hang."""
    reducer = trials.reducer
    x = contributions(reducer.takes[0])["plain"]

    def body(comm: Comm) -> str:
        if comm.rank == comm.size - 1:
            return "left"
        try:
            reducer.start(x(comm.rank), reducer.init(x(comm.rank)), comm, Step(0)).wait()
        except PeerLost:
            return "told"
        return "finished"

    outcomes = run_ranks(3, body, timeout_s=TIMEOUT_S)
    if outcomes != ["told", "told", "left"]:
        raise LawBroken(f"rank 2 of 3 left; the others: {', '.join(outcomes[:2])} (allowed: told)")


REDUCER_LAWS: tuple[Law[Trials], ...] = tuple(
    Law(check.__name__.replace("_", " "), (check.__doc__ or "").strip(), check)
    for check in (
        keeps_shape_and_type,
        is_the_average_as_declared,
        agrees_as_declared,
        conserves_as_declared,
        depends_on_the_mean_alone,
        leaves_input_alone,
        traffic_is_predicted,
        resumes,
        reports_a_lost_peer,
    )
)
"""All laws of reducers."""


def check_reducer(reducer: Reducer, sizes: Sequence[int] = SIZES) -> list[Verdict]:
    """Check all laws of reducers on one, with these numbers of ranks."""
    return verdicts(REDUCER_LAWS, Trials(reducer, sizes))


def zipf_contributions(
    kind: type[Contribution], size: int, *, num_rows: int = 100_000, rows: int = 20_000, width: int = 2
) -> list[Contribution]:
    """Return one contribution a rank whose rows follow Zipf's law, as words do; all have equally many rows."""
    inputs = [_zipf_rows(rank, num_rows, rows, width) for rank in range(size)]
    return [x if kind is Sparse else Dense(x.to_dense()) for x in inputs]


def even_values(like: Contribution, rank: int) -> Contribution:
    """Return a dense contribution of this shape whose values are alike everywhere."""
    return Dense(torch.randn(like.values.shape, generator=torch.Generator().manual_seed(rank)))


@functools.lru_cache(maxsize=32)
def _zipf_rows(rank: int, num_rows: int, rows: int, width: int) -> Sparse:
    rng = torch.Generator().manual_seed(rank)
    weights = 1.0 / torch.arange(1, num_rows + 1, dtype=torch.float64)
    # The largest log(u) / weight: a weighted sample without replacement.
    keys = torch.rand(num_rows, generator=rng, dtype=torch.float64).log() / weights
    found = keys.topk(rows).indices.sort().values
    return Sparse(found, torch.randn(rows, width, generator=rng), num_rows)


def measured_pattern(inputs: Sequence[Contribution]) -> Sparsity:
    """Return the pattern of these contributions: densification of every first k, where rows lie, their owners."""
    first = inputs[0]
    num_rows, width = _shape(first)
    itemsize = first.values.element_size()
    if isinstance(first, Dense):
        blocks = _blocks([nonzero_rows(x.values) for x in inputs], num_rows, width)
        return Sparsity(num_rows, width, 1.0, itemsize=itemsize, blocks=blocks)
    rows_of = [_indices(x) for x in inputs]
    present = torch.zeros(num_rows, dtype=torch.bool)
    gamma = {}
    for k, rows in enumerate(rows_of, 1):
        present[rows] = True
        gamma[k] = int(present.sum()) / rows_of[0].numel()
    own = torch.stack([profile(rows, num_rows) for rows in rows_of]).double().mean(0)
    merged = present.nonzero().view(-1)
    union = profile(merged, num_rows)

    def shared_out(partition: Partition) -> Imbalance:
        pushed = [owner_counts(rows, partition, num_rows, len(inputs)) for rows in rows_of]
        return imbalance(torch.stack(pushed), owner_counts(merged, partition, num_rows, len(inputs)).tolist())

    return Sparsity(
        num_rows,
        width,
        first.density,
        gamma,
        itemsize=itemsize,
        own_profile=tuple(own.tolist()),
        union_profile=tuple(union.tolist()),
        blocks=_blocks(rows_of, num_rows, width),
        imbalance={partition: shared_out(partition) for partition in PARTITIONS},
    )


def _blocks(rows_of: Sequence[Tensor], num_rows: int, width: int) -> dict[int, tuple[float, float]]:
    """Return the shares of blocks that one rank (on average) and any rank touches."""
    count = num_blocks(num_rows, rows_in_block(width))
    if not count:
        return {}
    found = [touched(rows, rows_in_block(width)) for rows in rows_of]
    own = sum(blocks.numel() for blocks in found) / len(found)
    return {BLOCK_ELEMENTS: (own / count, torch.unique(torch.cat(found)).numel() / count)}


def busiest(trial: Trial) -> Traffic:
    """Return the most that any rank received and sent."""
    seen = [at.metered for at in trial.ranks]
    return Traffic(max(t.rx_bytes for t in seen), max(t.tx_bytes for t in seen), max(t.rounds for t in seen))


def _through_a_file(state: State) -> State:
    file = io.BytesIO()
    torch.save({"slots": state.slots, "scalars": state.scalars, "extra": state.extra}, file)
    file.seek(0)
    return State(**torch.load(file, weights_only=True))


def _whole(x: Contribution) -> Tensor:
    return (x.to_dense() if isinstance(x, Sparse) else x.values).double()


def _shape(x: Contribution) -> tuple[int, ...]:
    return (x.num_rows, x.width) if isinstance(x, Sparse) else tuple(x.values.shape)


def _elements_of(value: Contribution, given: Contribution) -> bool:
    flat = isinstance(value, Sparse) and isinstance(given, Dense)
    return flat and _shape(value) == (given.values.numel(), 1)


def _indices(x: Contribution) -> Tensor:
    assert isinstance(x, Sparse)
    return x.indices


def _alike(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (torch.isnan(a) & torch.isnan(b))
