"""The laws of codecs hold for every row of the catalogue, and each can fail."""

import dataclasses
import pickle
import re
import subprocess
import sys

import pytest
import torch

from omnizen import catalog
from omnizen.codecs.cast import cast
from omnizen.codecs.coo import Coo, coo
from omnizen.errors import UserError
from omnizen.laws.codec import CODEC_LAWS, check_codec
from omnizen.laws.samples import payloads
from omnizen.types import Dense, Packed, Sparse, Step

LAWS = [law.name for law in CODEC_LAWS]


def broken_laws(codec):
    return {verdict.law: verdict.reason for verdict in check_codec(codec) if not verdict.held}


@pytest.mark.parametrize("name", catalog.CODECS)
def test_every_codec_keeps_every_law(name):
    assert broken_laws(catalog.codec(name)) == {}


@pytest.mark.parametrize("name", ["coo", "bitmap", "hash-bitmap"])
@pytest.mark.parametrize("values", ["float16", "bfloat16"])
def test_sparse_codecs_keep_the_laws_with_16_bit_values(name, values):
    assert broken_laws(catalog.codec(name, values=values)) == {}


def test_a_pipe_keeps_every_law():
    assert broken_laws(catalog.codec("rows") | catalog.codec("coo")) == {}


def test_payloads_decode_in_another_process(tmp_path):
    codecs = [catalog.codec(name) for name in catalog.CODECS]
    work = [(codec, payloads(codec.takes)[case]) for codec in codecs for case in ("plain", "not finite", "empty")]
    file = tmp_path / "payloads"
    file.write_bytes(pickle.dumps([(codec, codec.encode(x, Step(0))) for codec, x in work]))
    program = (
        "import pickle, sys; path = sys.argv[1];"
        "made = [codec.decode(payload) for codec, payload in pickle.load(open(path, 'rb'))];"
        "open(path, 'wb').write(pickle.dumps(made))"
    )
    subprocess.run([sys.executable, "-c", program, str(file)], check=True, timeout=50)
    there = pickle.loads(file.read_bytes())
    for (codec, x), back in zip(work, there, strict=True):
        here = codec.decode(codec.encode(x, Step(0)))
        torch.testing.assert_close(back.values, here.values, rtol=0, atol=0, equal_nan=True)
        if isinstance(here, Sparse):
            assert torch.equal(back.indices, here.indices)


@dataclasses.dataclass(frozen=True)
class Broken:
    """A good codec of rows with one thing wrong."""

    exact: bool = True
    unbiased: bool = True
    summable: bool = False
    name = "broken"
    takes = Sparse
    gives = Packed

    def encode(self, payload, step):
        return coo().encode(payload, step)

    def decode(self, payload):
        return coo().decode(payload)

    def nbytes(self, pattern):
        return coo().nbytes(pattern)


class GivesRows(Broken):
    def encode(self, payload, step):
        return payload

    def decode(self, payload):
        return payload


class DropsRowZero(Broken):
    def decode(self, payload):
        x = super().decode(payload)
        return Sparse(x.indices[1:], x.values[1:], x.num_rows)


class ForgetsTheType(Broken):
    def decode(self, payload):
        x = super().decode(payload)
        return Sparse(x.indices, x.values.float(), x.num_rows)


class Explodes(Broken):
    """Turns 2 into 380, as a compressor library once did."""

    def decode(self, payload):
        x = super().decode(payload)
        return Sparse(x.indices, x.values * 190, x.num_rows)


class HidesNan(Broken):
    def decode(self, payload):
        x = super().decode(payload)
        return Sparse(x.indices, torch.nan_to_num(x.values), x.num_rows)


class CountsOneIndexTooFew(Broken):
    def nbytes(self, pattern):
        size = coo().nbytes(pattern)[0] - 4
        return size, size


class ChangesItsInput(Broken):
    def encode(self, payload, step):
        payload.values.mul_(0.5)
        return super().encode(payload, step)


class ChangesThePayload(Broken):
    def decode(self, payload):
        x = super().decode(payload)
        back = Sparse(x.indices, x.values.clone(), x.num_rows)
        payload.streams[0].zero_()
        return back


class Remembers(Broken):
    """Decodes from a memory that a copy of the payload does not have."""

    memory: dict = {}  # noqa: RUF012

    def encode(self, payload, step):
        made = super().encode(payload, step)
        self.memory[id(made)] = payload
        return made

    def decode(self, payload):
        x = super().decode(payload)
        return x if id(payload) in self.memory else Sparse(x.indices, x.values * 0, x.num_rows)


class RoundsDown(Broken):
    """Cuts to whole numbers, and calls it unbiased."""

    def decode(self, payload):
        x = super().decode(payload)
        return Sparse(x.indices, x.values.trunc(), x.num_rows)


class Roots(Broken):
    """Sends square roots, which do not add up."""

    takes = Dense
    gives = Dense

    def encode(self, payload, step):
        return Dense(payload.values.sqrt())

    def decode(self, payload):
        return Dense(payload.values**2)


BREAKERS = [
    (GivesRows(), "gives what it declares", "declares Packed but gives Sparse"),
    (DropsRowZero(), "keeps kind shape and type", r"\[12, 3\].* came back as .*\[11, 3\]"),
    (ForgetsTheType(), "keeps kind shape and type", "float64 .* came back as .*float32"),
    (DropsRowZero(), "is exact as declared", "rows .* came back as"),
    (Explodes(), "is exact as declared", "came back as"),
    (
        Explodes(exact=False, unbiased=False),
        "errors are bounded",
        "the limit is .*, that of sending nothing; furthest off",
    ),
    (HidesNan(), "not finite values are reported", "1 NaN went in, 0 came out"),
    (CountsOneIndexTooFew(), "nbytes holds", "bytes, but nbytes"),
    (ChangesItsInput(), "leaves input alone", "encoding changed its input"),
    (ChangesThePayload(), "leaves input alone", "decoding changed the payload"),
    (Remembers(), "decodes from a copy", "a pickled copy decodes to something else"),
    (Roots(exact=False, unbiased=False, summable=True), "sums as declared", "not decode to their sum"),
    (RoundsDown(exact=False), "is unbiased as declared", "standard errors"),
]


@pytest.mark.parametrize(("codec", "law", "sentence"), BREAKERS, ids=lambda x: type(x).__name__)
def test_each_law_catches_a_broken_codec(codec, law, sentence):
    reasons = broken_laws(codec)
    assert law in reasons, reasons
    assert re.search(sentence, reasons[law], re.DOTALL), reasons[law]


def test_every_law_has_a_codec_that_breaks_it():
    assert {law for _, law, _ in BREAKERS} == set(LAWS)


def test_an_error_of_the_codec_is_a_broken_law():
    class Raises(Broken):
        def decode(self, payload):
            raise RuntimeError("no")

    assert re.fullmatch(
        r"raised RuntimeError: no \(.*\.py, line \d+\)", broken_laws(Raises())["keeps kind shape and type"]
    )


def test_pipes_refuse_what_does_not_fit():
    with pytest.raises(UserError, match="'coo' gives Packed and 'rows' takes Dense; put a codec"):
        coo() | catalog.codec("rows")


def test_wire_formats_are_checked():
    with pytest.raises(UserError, match="did you mean 'float16'"):
        cast("float61")
    with pytest.raises(UserError, match="did you mean 'bfloat16'"):
        coo("bfloat")
    with pytest.raises(UserError, match="allowed: float16, bfloat16"):
        cast("float32")


def test_cast_clamps_and_never_makes_infinity():
    for values in ("float16", "bfloat16"):
        x = torch.tensor([3.4028235e38, -3.4028235e38, 1.0])
        back = cast(values).decode(cast(values).encode(Dense(x), Step(0))).values
        assert torch.isfinite(back).all()
        assert back[0] == torch.finfo(getattr(torch, values)).max
        assert back[1] == -back[0]


def test_cast_keeps_any_shape():
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).transpose(0, 2)
    assert cast().decode(cast().encode(Dense(x), Step(0))).values.shape == (4, 3, 2)


@pytest.mark.parametrize("partition", ["hash", "cyclic"])
def test_hash_bitmaps_of_all_owners_cover_every_row(partition):
    num_rows, n = 1003, 7
    rows = torch.arange(0, num_rows, 3)
    total_bits, found = 0, []
    for owner in range(n):
        codec = catalog.codec("hash-bitmap", n=n, owner=owner, partition=partition, seed=5)
        mine = rows[codec._owned(num_rows).owner(rows) == owner]
        packed = codec.encode(Sparse(mine, torch.ones(mine.numel(), 2), num_rows), Step(0))
        back = codec.decode(packed)
        assert torch.equal(back.indices, mine)
        found.append(back.indices)
        total_bits += packed.streams[1].numel()
    assert torch.equal(torch.cat(found).sort().values, rows)
    assert num_rows / 8 <= total_bits <= num_rows / 8 + n
    with pytest.raises(UserError, match=r"row \d+ does not belong to owner 0 of 7"):
        catalog.codec("hash-bitmap", n=n, owner=0, partition=partition, seed=5).encode(
            Sparse(rows, torch.ones(rows.numel(), 2), num_rows), Step(0)
        )
    with pytest.raises(UserError, match="owner must be in"):
        catalog.codec("hash-bitmap", n=2, owner=2)


def test_indices_take_4_bytes_until_rows_need_more():
    near, far = torch.tensor([2**31 - 1]), torch.tensor([2**31])
    one = torch.ones(1, 1)
    assert Coo().encode(Sparse(near, one, 2**31), Step(0)).streams[1].dtype == torch.int32
    packed = Coo().encode(Sparse(far, one, 2**31 + 1), Step(0))
    assert packed.streams[1].dtype == torch.int64
    assert Coo().decode(packed).indices.tolist() == [2**31]


def test_index_sets_do_not_depend_on_the_chunks_they_are_made_in(monkeypatch):
    from omnizen.codecs import ownership

    key = ownership.Ownership("hash", 1003, 4, 9)
    whole = ownership._table(key, torch.device("cpu"))
    monkeypatch.setattr(ownership, "CHUNK_ROWS", 100)
    pieces = ownership._table(key, torch.device("cpu"))
    assert torch.equal(whole.rows, pieces.rows)
    assert whole.counts == pieces.counts
    assert sum(whole.counts) == 1003
    assert ownership._table(ownership.Ownership("hash", 0, 4), torch.device("cpu")).counts == (0, 0, 0, 0)


def test_the_cache_of_index_sets_is_bounded(monkeypatch):
    from omnizen.codecs import ownership

    tables, cpu = ownership._Tables(), torch.device("cpu")
    monkeypatch.setattr(ownership, "CACHE_BYTES", 3 * 4 * 1000)
    for seed in range(10):
        tables.get(ownership.Ownership("hash", 1000, 4, seed), cpu)
    assert [key.seed for key, _ in tables._held] == [7, 8, 9]
    tables.get(ownership.Ownership("hash", 100_000, 4, 0), cpu)  # larger than the bound alone: kept, the rest goes
    assert [key.num_rows for key, _ in tables._held] == [100_000]
