"""Floating-point magnitudes as integers, and comparisons of 32 of them at once.

Without the sign bit, the bits of a float order as its magnitude does: zero first, infinity next to last, NaN last.
One set of loops so serves all types, 16-bit ones too, which numba has no floats for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from torch import Tensor

LANES = 32
Array = np.ndarray[Any, Any]
_SAME_WIDTH = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_dtype(flat: Tensor) -> Any:
    """Return numpy's type of the bits of a tensor's elements."""
    return np.dtype(f"i{flat.element_size()}")


def bits_of(flat: Tensor) -> Array:
    """Return the bits of a flat tensor as integers of the same width; shares memory where it is contiguous."""
    bits: Array = flat.detach().contiguous().view(_SAME_WIDTH[flat.element_size()]).numpy()
    return bits


def no_sign(bits: Array) -> Any:
    """Return the mask that leaves a float's magnitude."""
    return bits.dtype.type(np.iinfo(bits.dtype).max)


def magnitude_bits(value: float, dtype: torch.dtype) -> Any:
    """Return the bits of a magnitude rounded to a type; for 0 those of the least magnitude above it."""
    bits = bits_of(torch.tensor([value], dtype=dtype))
    return max(bits.dtype.type(1), bits[0] & no_sign(bits))


def magnitude(bits: Any, dtype: torch.dtype) -> float:
    """Return the magnitude of some bits; that of NaN is infinite."""
    value = float(torch.from_numpy(np.array([bits])).view(dtype))
    return value if value == value else float("inf")


def _hits(context, bits, start, mask, least):  # type: ignore[no-untyped-def]
    """``hits(bits, start, mask, least)``: bit j is set where ``bits[start + j] & mask >= least``, j below 32."""
    del context, start, mask, least
    signature = types.uint64(bits, types.intp, bits.dtype, bits.dtype)

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        array, at, mask, least = args
        lane = context.get_value_type(signature.args[0].dtype)
        vector = ir.VectorType(lane, LANES)
        data = context.make_array(signature.args[0])(context, builder, array).data
        loaded = builder.load(builder.bitcast(builder.gep(data, [at]), vector.as_pointer()), align=lane.width // 8)
        first = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)

        def everywhere(scalar):  # type: ignore[no-untyped-def]
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), first)

        found = builder.icmp_signed(">=", builder.and_(loaded, everywhere(mask)), everywhere(least))
        return builder.zext(builder.bitcast(found, ir.IntType(LANES)), ir.IntType(64))

    return signature, generate


hits: Any = intrinsic(_hits)


def _lowest(context, word):  # type: ignore[no-untyped-def]
    """``lowest(word)``: place of the lowest bit that is set; the word must not be 0."""
    del context, word

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        del context, signature
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


lowest: Any = intrinsic(_lowest)
