"""The laws of codecs: see the docstring of ``protocols.Codec``."""

from __future__ import annotations

import pickle

import torch
from torch import Tensor

from omnizen.laws.law import Law, LawBroken, Verdict, verdicts
from omnizen.laws.samples import FINITE, payloads, same
from omnizen.protocols import Codec
from omnizen.types import Dense, Payload, Sparse, Sparsity, Step

STEP = Step(3, shared_seed=11, name="law")
SEEDS = 400


def gives_what_it_declares(codec: Codec) -> None:
    """What it makes is of the kind that it declares."""
    for name, x in payloads(codec.takes).items():
        made = codec.encode(x, STEP)
        if not isinstance(made, codec.gives):
            raise LawBroken(f"{name}: declares {codec.gives.__name__} but gives {type(made).__name__}")


def keeps_kind_shape_and_type(codec: Codec) -> None:
    """What is decoded has the kind, shape and dtype of what was encoded."""
    for name, x in payloads(codec.takes).items():
        back = codec.decode(codec.encode(x, STEP))
        given, got = _described(x), _described(back)
        if given != got:
            raise LawBroken(f"{name}: {given} came back as {got}")


def is_exact_as_declared(codec: Codec) -> None:
    """An exact codec gives back every bit."""
    if not codec.exact:
        return
    for name, x in payloads(codec.takes).items():
        back = codec.decode(codec.encode(x, STEP))
        if not same(_rows(x), _rows(back)) or not same(_values(x), _values(back)):
            raise LawBroken(f"{name}: declared exact, but {_first_difference(x, back)}")


def errors_are_bounded(codec: Codec) -> None:
    """The error of finite values is no larger than sending nothing would make it."""
    if codec.unbiased:  # unbiased rounding may err by more than the value, and answers to another law
        return
    samples = payloads(codec.takes)
    for name in FINITE:
        x, back = _whole(samples[name]), _whole(codec.decode(codec.encode(samples[name], STEP)))
        error, limit = float((back - x).norm()), float(x.norm())
        if not error <= limit:
            odd = int((~torch.isfinite(back)).sum())
            raise LawBroken(f"{name}: {_not_finite(x, back, odd) if odd else _too_far(x, back)}")


def not_finite_values_are_reported(codec: Codec) -> None:
    """NaN arrives as NaN, infinity not as a number, and neither spoils its neighbours.

    Where payloads are added on the wire a counter may hold several elements, and whole numbers have no NaN: there
    it is enough that what was not finite does not come back finite.
    """
    x = payloads(codec.takes)["not finite"]
    before, after = _whole(x), _whole(codec.decode(codec.encode(x, STEP)))
    if codec.summable:
        hidden = int((torch.isfinite(after) & ~torch.isfinite(before)).sum())
        if hidden:
            raise LawBroken(f"{hidden} of the values that are not finite came back finite")
        return
    if not torch.equal(torch.isnan(after), torch.isnan(before)):
        raise LawBroken(f"{int(torch.isnan(before).sum())} NaN went in, {int(torch.isnan(after).sum())} came out")
    if not torch.equal(torch.isfinite(after), torch.isfinite(before)):
        raise LawBroken("an infinite value came back finite, or a finite one infinite")


def nbytes_holds(codec: Codec) -> None:
    """The bytes of the result lie in the range that ``nbytes`` gives.

    A value that is not finite may take 8 bytes more: it is a fault to report, not traffic to plan for.
    """
    for name, x in payloads(codec.takes).items():
        values = _values(x)
        num_rows = x.num_rows if isinstance(x, Sparse) else values.shape[0]
        kept = x.indices.numel() if isinstance(x, Sparse) else int((values != 0).any(1).sum())
        density = kept / num_rows if num_rows else 0.0
        width = values.shape[1]
        pattern = Sparsity(num_rows, width, density, itemsize=values.element_size())
        low, high = codec.nbytes(pattern)
        made = codec.encode(x, STEP)
        nbytes = _nbytes(made)
        odd = int((~torch.isfinite(values)).sum())
        if not low - 0.5 <= nbytes <= high + 8 * odd + 0.5:
            raise LawBroken(f"{name}: {nbytes} bytes, but nbytes() says {low:.0f} to {high:.0f}")


def leaves_input_alone(codec: Codec) -> None:
    """Neither encoding nor decoding changes what it was given."""
    for name, x in payloads(codec.takes).items():
        before = pickle.loads(pickle.dumps(x))
        made = codec.encode(x, STEP)
        if not same(_values(x), _values(before)) or not same(_rows(x), _rows(before)):
            raise LawBroken(f"{name}: encoding changed its input")
        kept = pickle.loads(pickle.dumps(made))
        codec.decode(made)
        if any(not same(a, b) for a, b in zip(_tensors(made), _tensors(kept), strict=True)):
            raise LawBroken(f"{name}: decoding changed the payload")


def decodes_from_a_copy(codec: Codec) -> None:
    """Decoding needs nothing but the payload: pickled copies of codec and payload decode the same."""
    for name, x in payloads(codec.takes).items():
        made = codec.encode(x, STEP)
        here = codec.decode(made)
        there = pickle.loads(pickle.dumps(codec)).decode(pickle.loads(pickle.dumps(made)))
        if not same(_values(here), _values(there)) or not same(_rows(here), _rows(there)):
            raise LawBroken(f"{name}: a pickled copy decodes to something else")


def sums_as_declared(codec: Codec) -> None:
    """When payloads may be added on the wire, the sum of two decodes to the sum of what each decodes to."""
    if not codec.summable:
        return
    samples = payloads(codec.takes)
    for name in ("plain", "float64"):
        x = samples[name]
        y = pickle.loads(pickle.dumps(x))
        _values(y).mul_(-0.3).add_(0.1)
        added = pickle.loads(pickle.dumps(codec.encode(x, STEP)))
        apart = _whole(codec.decode(added)) + _whole(codec.decode(codec.encode(y, STEP)))
        for mine, theirs in zip(_tensors(added), _tensors(codec.encode(y, STEP)), strict=True):
            mine.add_(theirs)
        if not torch.allclose(_whole(codec.decode(added)), apart, rtol=1e-5, atol=1e-6):
            raise LawBroken(f"{name}: declared summable, but the sum of two payloads does not decode to their sum")


def is_unbiased_as_declared(codec: Codec) -> None:
    """The mean over many steps of what arrives is what was sent, within 5 standard errors.

    A choice rarer than 8 in all steps may not have been drawn yet: one element in 8 may be off by so much of its
    value and never vary.
    """
    if not codec.unbiased or codec.exact:
        return
    x = payloads(codec.takes)["plain"]
    arrived = [_whole(codec.decode(codec.encode(x, Step(n, shared_seed=5, name="law")))) for n in range(SEEDS)]
    stack = torch.stack(arrived)
    standard_error = stack.std(0) / SEEDS**0.5
    off = (stack.mean(0) - _whole(x)).abs()
    rare = (standard_error == 0) & (off <= 8 / SEEDS * _whole(x).abs())
    if 8 * int((rare & (off > 1e-6)).sum()) <= off.numel():
        off = off.masked_fill(rare, 0.0)
    if bool((off > 5 * standard_error + 1e-6).any()):
        worst = float((off / (standard_error + 1e-12)).max())
        raise LawBroken(f"declared unbiased, but the mean of {SEEDS} steps is off by {worst:.1f} standard errors")


CODEC_LAWS: tuple[Law[Codec], ...] = tuple(
    Law(check.__name__.replace("_", " "), (check.__doc__ or "").strip(), check)
    for check in (
        gives_what_it_declares,
        keeps_kind_shape_and_type,
        is_exact_as_declared,
        errors_are_bounded,
        not_finite_values_are_reported,
        nbytes_holds,
        leaves_input_alone,
        decodes_from_a_copy,
        sums_as_declared,
        is_unbiased_as_declared,
    )
)
"""All laws of codecs."""


def check_codec(codec: Codec) -> list[Verdict]:
    """Check all laws of codecs on one."""
    return verdicts(CODEC_LAWS, codec)


def _not_finite(x: Tensor, back: Tensor, odd: int) -> str:
    worst = (~torch.isfinite(back)).reshape(-1).nonzero()[0]
    went, came = (float(t.reshape(-1)[worst]) for t in (x, back))
    return (
        f"{odd} of {x.numel()} finite values came back as infinity or NaN, {went:.3g} as {came}; what lies beyond "
        "the range of a narrower type has to be limited to its largest number (torch.finfo(dtype).max)"
    )


def _too_far(x: Tensor, back: Tensor) -> str:
    worst = (back - x).abs().reshape(-1).argmax()
    went, came = (float(t.reshape(-1)[worst]) for t in (x, back))
    error, limit = float((back - x).norm()), float(x.norm())
    return (
        f"what came back is {error:.3g} from what was sent; the limit is {limit:.3g}, that of sending nothing; "
        f"furthest off: {went:.3g} came back as {came:.3g}"
    )


def _values(x: Payload) -> Tensor:
    if isinstance(x, (Dense, Sparse)):
        return x.values
    raise LawBroken(f"decoding gave {type(x).__name__}, which is still packed")


def _rows(x: Payload) -> Tensor:
    return x.indices if isinstance(x, Sparse) else torch.empty(0, dtype=torch.int64)


def _whole(x: Payload) -> Tensor:
    return (x.to_dense() if isinstance(x, Sparse) else _values(x)).double()


def _tensors(x: Payload) -> list[Tensor]:
    if isinstance(x, Dense):
        return [x.values]
    return [x.values, x.indices] if isinstance(x, Sparse) else list(x.streams)


def _nbytes(x: Payload) -> int:
    return sum(t.numel() * t.element_size() for t in _tensors(x))


def _described(x: Payload) -> str:
    if not isinstance(x, (Dense, Sparse)):
        return type(x).__name__
    rows = f" of {x.num_rows} rows, {x.indices.dtype} indices" if isinstance(x, Sparse) else ""
    return f"{type(x).__name__} {list(x.values.shape)} {x.values.dtype}{rows}"


def _first_difference(x: Payload, back: Payload) -> str:
    if not same(_rows(x), _rows(back)):
        return f"rows {_rows(x).tolist()} came back as {_rows(back).tolist()}"
    a, b = _values(x), _values(back)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{_described(x)} came back as {_described(back)}"
    place = tuple(int(i) for i in ((a != b) & ~(torch.isnan(a) & torch.isnan(b))).nonzero()[0])
    return f"value {float(a[place])!r} at {place} came back as {float(b[place])!r}"
