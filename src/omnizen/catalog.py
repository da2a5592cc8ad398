"""The one table of methods. A row brings a method's laws, benchmark, choice on the command line, plan candidate and
citation; a new method is one file and one row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from omnizen import catalog_citations as citations
from omnizen.catalog_lossy import LOSSY
from omnizen.catalog_rows import SHORT, CodecRow, ReducerRow, SelectorRow, WrapperRow
from omnizen.catalog_selectors import SELECTORS
from omnizen.catalog_settings import made
from omnizen.catalog_summed import SUMMED, SUMMED_CODECS
from omnizen.catalog_wrappers import WRAPPERS
from omnizen.errors import LISTS_METHODS, UserError, nearest

if TYPE_CHECKING:
    from omnizen.protocols import Codec, Reducer, Selector


__all__ = ["CODECS", "REDUCERS", "SELECTORS", "WRAPPERS", "CodecRow", "ReducerRow", "SelectorRow", "WrapperRow"]

Row = TypeVar("Row", ReducerRow, CodecRow, SelectorRow)
_SPARSE = ("row-sparse", "element-sparse")


def _zen(partition: str, pull: str, summary: str) -> ReducerRow:
    saves = "bytes where ranks' rows overlap, on many ranks; costs a second exchange that follows the first"
    settings = {"partition": partition, "pull": pull}
    return ReducerRow(
        factory="reducers.zen:zen",
        summary=summary,
        saves=saves,
        citation=citations.ZEN,
        kinds=_SPARSE,
        settings=settings,
    )


def _sparcml_split(dense: bool, summary: str) -> ReducerRow:
    saves = "bytes where ranks' rows overlap and are spread evenly; costs n - 1 times the rows of a hot range"
    return ReducerRow(
        factory="reducers.sparcml_split:sparcml_split",
        summary=summary,
        saves=saves,
        citation=citations.SPARCML,
        kinds=_SPARSE,
        settings={"dense": dense},
    )


def _coded(way: str, places_only: bool, summary: str) -> ReducerRow:
    more = "" if places_only else ", an eighth of float32 values"
    return ReducerRow(
        factory="reducers.coded:coded",
        summary=summary,
        saves=f"3/4 of 4-byte indices at 1 % density{more}, without loss; costs coding on the processor",
        citation=citations.DEEPREDUCE,
        kinds=_SPARSE,
        settings={"way": way, "places_only": places_only},
    )


REDUCERS: dict[str, ReducerRow] = {
    "dense": ReducerRow(
        factory="reducers.dense:dense",
        summary="all elements by ring all-reduce",
        saves="nothing; the bytes do not depend on the pattern",
        citation=citations.RING,
        kinds=("dense", *_SPARSE),
    ),
    "dense-packed": ReducerRow(
        factory="reducers.schemes:dense_packed_scheme",
        summary="parts to their owners and averages back, with exponents in about four bits",
        saves="an eighth of float32, a quarter of bfloat16, without loss; costs four passes over the values",
        citation=citations.EXPONENTS,
        kinds=("dense",),
    ),
    "agsparse": ReducerRow(
        factory="reducers.agsparse:agsparse",
        summary="everybody's rows to everybody, added up once",
        saves="bytes on few ranks; costs n - 1 times one rank's rows",
        citation=citations.ZEN,
        kinds=_SPARSE,
    ),
    "sparcml": ReducerRow(
        factory="reducers.sparcml:sparcml",
        summary="sums of pairs, then of pairs of pairs, along a hypercube",
        saves="steps (log2 n) and bytes where rows overlap little on few ranks",
        citation=citations.SPARCML,
        kinds=_SPARSE,
    ),
    "sparcml-split": _sparcml_split(False, "rows to the owner of their range, sums back with indices"),
    "sparcml-split-dense": _sparcml_split(True, "the same; a range whose sum is nearly full comes back whole"),
    "omnireduce": ReducerRow(
        factory="reducers.omnireduce:omnireduce",
        summary="a dense all-reduce over the blocks that any rank touches",
        saves="what no rank touches, whatever the number of ranks; costs every element of a touched block",
        citation=citations.OMNIREDUCE,
        kinds=_SPARSE,
    ),
    "omnireduce-streaming": ReducerRow(
        factory="reducers.omnireduce_streaming:omnireduce_streaming",
        summary="blocks to aggregators lane by lane, each with the number of the next",
        saves="indices, and the blocks that a rank does not touch; costs as many rounds as the fullest lane has",
        citation=citations.OMNIREDUCE,
        kinds=_SPARSE,
    ),
    "parameter-server": ReducerRow(
        factory="reducers.parameter_server:parameter_server",
        summary="rows to the servers of their partitions, averages back with indices",
        saves="bytes where ranks' rows overlap; a hot range narrower than a partition still has one server",
        citation=citations.PARALLAX,
        kinds=_SPARSE,
    ),
    "zen-coo": _zen("hash", "coo", "rows to owners by hash, averages back with indices"),
    "zen-bitmap": _zen("hash", "bitmap", "rows to owners by hash, averages back with a bit for each owned row"),
    "zen-cyclic-coo": _zen("cyclic", "coo", "rows to owners by row % n, averages back with indices"),
    "zen-cyclic-bitmap": _zen("cyclic", "bitmap", "rows to owners by row % n, averages back with a bit a row"),
    "agsparse-golomb": _coded("all-gather", True, "agsparse, with distances between rows in place of indices"),
    "agsparse-packed": _coded("all-gather", False, "the same, and exponents of values in about four bits"),
    "zen-cyclic-golomb": _coded("owners", True, "zen-cyclic-coo, with distances between rows in place of indices"),
    "zen-cyclic-packed": _coded("owners", False, "the same, and exponents of values in about four bits"),
} | LOSSY
REDUCERS |= SUMMED
"""Ways to average, by scheme name."""


def _sixteen_bits(values: str, error: str) -> CodecRow:
    return CodecRow(
        factory="codecs.cast:cast",
        summary=f"values in {values}, summed in float32",
        saves=f"half of the bytes; costs a relative error of {error}",
        citation=citations.MIXED,
        kinds=("dense",),
        settings={"values": values},
    )


def _bloom(policy: str, summary: str, saves: str) -> CodecRow:
    return CodecRow(
        factory="codecs.index.bloom:bloom",
        summary=f"rows with a Bloom filter of their places; {summary}",
        saves=f"half of 4-byte indices at 1 % density; costs {saves}",
        citation=citations.DEEPREDUCE,
        kinds=_SPARSE,
        lossy=policy != "p0",
        settings={"policy": policy},
    )


CODECS: dict[str, CodecRow] = {
    "cast-float16": _sixteen_bits("float16", "2^-11 between 6e-5 and 65504"),
    "cast-bfloat16": _sixteen_bits("bfloat16", "2^-8 over the range of float32"),
    "coo": CodecRow(
        factory="codecs.coo:coo",
        summary="rows with 4-byte indices",
        saves="the rows that are not there; costs one index a row",
        citation=citations.SPARCML,
        kinds=_SPARSE,
    ),
    "bitmap": CodecRow(
        factory="codecs.bitmap:bitmap",
        summary="rows with one bit for every row of the tensor",
        saves="indices where more than 1 row in 32 is there; costs a bit for every row",
        citation=citations.ZEN,
        kinds=_SPARSE,
    ),
    "hash-bitmap": CodecRow(
        factory="codecs.bitmap:hash_bitmap",
        summary="one owner's rows with one bit for each row that it owns",
        saves="indices; all owners' bitmaps together take one bit for every row",
        citation=citations.ZEN,
        kinds=_SPARSE,
    ),
    "golomb": CodecRow(
        factory="codecs.index.golomb:golomb",
        summary="rows with the Golomb-Rice code of the distances between them",
        saves="3/4 of 4-byte indices at 1 % density, within 0.1 bits of the least; costs nanoseconds an index",
        citation=citations.GOLOMB,
        kinds=_SPARSE,
    ),
    "delta-varint": CodecRow(
        factory="codecs.index.delta_varint:delta_varint",
        summary="rows with the distances between them in one, two or more bytes",
        saves="3/4 of 4-byte indices down to 1 % density; costs nanoseconds an index",
        citation=citations.DEEPREDUCE,
        kinds=_SPARSE,
    ),
    "run-length": CodecRow(
        factory="codecs.index.run_length:run_length",
        summary="rows with the lengths of runs of neighbours",
        saves="nearly all of the indices where rows come in blocks; costs two bytes a row where they do not",
        citation=citations.DEEPREDUCE,
        kinds=_SPARSE,
    ),
    "bloom-p0": _bloom("p0", "wrong ones travel as zeros", "a tenth more values"),
    "bloom-p1": _bloom("p1", "as many as there are, drawn by a seed", "a tenth of the rows"),
    "bloom-p2": _bloom("p2", "as many as there are, drawn from conflict sets", "some of the rows"),
    "qsgd": CodecRow(
        factory="codecs.values.qsgd:qsgd",
        summary="values on a few levels between zero and their bucket's largest, by chance",
        saves="7/8 of float32 with 7 levels; costs variance, not bias",
        citation=citations.QSGD,
        kinds=("dense",),
        lossy=True,
    ),
    "terngrad": CodecRow(
        factory="codecs.values.terngrad:terngrad",
        summary="minus, zero or plus the largest value, by chance, five to a byte",
        saves="19/20 of float32; costs much variance, not bias",
        citation=citations.TERNGRAD,
        kinds=("dense",),
        lossy=True,
    ),
    "sign": CodecRow(
        factory="codecs.values.sign:sign",
        summary="signs and the mean magnitude",
        saves="31/32 of float32; costs bias, which error feedback repays",
        citation=citations.FEEDBACK,
        kinds=("dense",),
        lossy=True,
    ),
    "natural": CodecRow(
        factory="codecs.values.natural:natural",
        summary="one of the two powers of two around each value, by chance",
        saves="23 bits in 32; costs at most 1/8 in variance, not bias",
        citation=citations.NATURAL,
        kinds=("dense",),
        lossy=True,
    ),
    "one-sided": CodecRow(
        factory="codecs.values.binarised:one_sided",
        summary="the largest values on one side as their mean, at Golomb-coded places",
        saves="all but 0.08 bits of an element at 1 %; costs bias, which error feedback repays",
        citation=citations.SBC,
        kinds=("dense",),
        lossy=True,
    ),
    "ternary": CodecRow(
        factory="codecs.values.binarised:ternary",
        summary="the largest values as signs of their mean magnitude, at Golomb-coded places",
        saves="all but 0.1 bits of an element at 1 %; costs bias, which error feedback repays",
        citation=citations.STC,
        kinds=("dense",),
        lossy=True,
    ),
    "common-magnitude": CodecRow(
        factory="codecs.common_magnitude:common_magnitude",
        summary="elements with one magnitude, which travels once, as places with signs",
        saves="half of what a selection by chance takes as single elements",
        citation=citations.WANGNI,
        kinds=("element-sparse",),
    ),
    "fp8": CodecRow(
        factory="codecs.values.fp8:fp8",
        summary="8-bit floats, with a power of two for each block",
        saves="3/4 of float32; costs a relative error of 2^-4",
        citation=citations.FP8,
        kinds=("dense",),
        lossy=True,
    ),
    "curve-poly": CodecRow(
        factory="codecs.values.curve_poly:curve_poly",
        summary="sorted values as polynomials, with each value's rank",
        saves="the values' bits; costs log2 n bits a rank, a sort and about 1 % of error",
        citation=citations.DEEPREDUCE,
        kinds=("dense",),
        lossy=True,
    ),
    "curve-exp": CodecRow(
        factory="codecs.values.curve_exp:curve_exp",
        summary="sorted values as a sum of two exponentials, with each value's rank",
        saves="the values' bits; costs log2 n bits a rank, a sort and some per cent of error",
        citation=citations.DEEPREDUCE,
        kinds=("dense",),
        lossy=True,
    ),
    "exponent-pack": CodecRow(
        factory="codecs.values.exponent_pack:exponent_pack",
        summary="floats with short codes for their exponents",
        saves="an eighth of float32, a quarter of bfloat16, without loss; costs two passes over the values",
        citation=citations.EXPONENTS,
        kinds=("dense",),
    ),
    "zstd": CodecRow(
        factory="codecs.values.zstd:zstd",
        summary="values compressed by Zstandard, byte place by byte place",
        saves="what repeats, without loss; costs much time",
        citation=citations.ZSTD,
        kinds=("dense",),
    ),
    "rows": CodecRow(
        factory="codecs.rows:rows",
        summary="the non-zero rows of a dense matrix",
        saves="zero rows; costs one pass over the matrix",
        citation="Omnizen; the row-sparse view of embeddings as in Kim et al., Parallax, EuroSys 2019.",
        kinds=("dense",),
    ),
} | SUMMED_CODECS
"""Ways to pack, by name."""


def reducer(name: str, **settings: Any) -> Reducer:
    """Make a reducer by scheme name, or from a text with settings and wrappers such as ``topk(density=0.001)``.

    Raises:
        UserError: for an unknown name; the nearest one is suggested.

    Example:
        >>> reducer("zen-coo").name
        'zen-coo'
    """
    name = full_name(name)
    if isinstance(name, str) and "(" in name and not settings:
        from omnizen import catalog_text

        whole: Reducer = catalog_text.made(name, REDUCERS, CODECS, SELECTORS, WRAPPERS)
        return whole
    reducer: Reducer = made(name, _row(name, REDUCERS, "reduction scheme"), settings)
    return reducer


def full_name(name: str) -> str:
    """Return the catalogue's name of a scheme that is known by another one too; other names as they are.

    Example:
        >>> full_name("zen"), full_name("dense")
        ('zen-coo', 'dense')
    """
    return SHORT.get(name, name) if isinstance(name, str) else name


def schemes(kind: str | None = None, *, lossy: bool = False) -> list[str]:
    """Return the names of the reducers that apply to a kind of gradient (all kinds if left out).

    Args:
        lossy: whether to return those that lose something too.

    Example:
        >>> schemes("dense")
        ['dense', 'dense-packed']
    """
    return [
        name for name, row in REDUCERS.items() if (kind is None or kind in row.kinds) and (lossy or not row.lossy)
    ]


def codec(name: str, **settings: Any) -> Codec:
    """Make a codec by name.

    Raises:
        UserError: for an unknown name; the nearest one is suggested.
    """
    codec: Codec = made(name, _row(name, CODECS, "codec"), settings)
    return codec


def selector(name: str, **settings: Any) -> Selector:
    """Make a selector by name.

    Raises:
        UserError: for an unknown name; the nearest one is suggested.
    """
    selector: Selector = made(name, _row(name, SELECTORS, "selector"), settings)
    return selector


def _short(table: Mapping[str, Row]) -> Iterable[str]:
    return SHORT if table is REDUCERS else ()


def _row(name: str, table: Mapping[str, Row], what: str) -> Row:
    if name not in table:
        raise UserError(f"{what}: {nearest(name, table, listed_by=LISTS_METHODS, also=_short(table))}")
    return table[name]
