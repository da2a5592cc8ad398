"""The pure parts of the loaders, on tiny archives made here."""

import io
import shutil
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest

from omnizen.data import archive, brown, fashion_mnist, flights, spam_assassin
from omnizen.errors import UserError


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.tobytes()


def test_tar_members_come_in_order_of_names(tmp_path):
    path = tmp_path / "a.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name in ("package/cb01", "package/ca02", "package/README"):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    got = list(archive.tar_members(path, lambda name: brown._DOCUMENT.fullmatch(name) is not None))
    assert got == [("package/ca02", b"package/ca02"), ("package/cb01", b"package/cb01")]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="this machine has no dpkg-deb")
def test_deb_members(tmp_path):
    root = tmp_path / "toy"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN" / "control").write_text(
        "Package: toy\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: toy\n"
    )
    (root / "usr").mkdir()
    (root / "usr" / "x.gz").write_bytes(b"content")
    subprocess.run(["dpkg-deb", "-b", root, tmp_path / "toy.deb"], check=True, capture_output=True, timeout=30)
    assert list(archive.deb_members(tmp_path / "toy.deb", lambda n: n.endswith(".gz"))) == [
        ("./usr/x.gz", b"content")
    ]
    (tmp_path / "toy.deb").write_bytes(b"not a package")
    with pytest.raises(UserError, match="could not be read"):
        list(archive.deb_members(tmp_path / "toy.deb", lambda n: True))


def test_wheel_member(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("a/b", "content")
    assert archive.wheel_member(tmp_path / "a.whl", "a/b") == b"content"


def test_brown_words_lose_tags_and_case():
    assert brown.words_of(b"\n\tThe/at Fulton/np-tl 1/2/cd ./.\n") == ["the", "fulton", "1/2", "."]


def test_idx_arrays():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(fashion_mnist.idx_array(idx(array)), array)
    with pytest.raises(UserError, match=r"shape \[2, 3, 4\] has 23 bytes"):
        fashion_mnist.idx_array(idx(array)[:-1])
    with pytest.raises(UserError, match="not an IDX file"):
        fashion_mnist.idx_array(b"PK\3\4")


def test_one_hot_columns_of_fields_follow_one_another():
    got = flights.one_hot({"a": np.array(["10", "9", "10"]), "b": np.array(["z", "y", "x"])})
    assert got["columns"].tolist() == [[0, 4], [1, 3], [0, 2]]
    assert got["field_starts"].tolist() == [0, 2, 5]


def test_flights_table():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "arr_delay": [16.0, 15.0, None, 90.0],
            "tailnum": ["A", "B", "C", None],
            **{name: [1, 1, 1, 1] for name in ("month", "day", "hour", "flight")},
            **{name: ["x", "y", "z", "z"] for name in ("carrier", "origin", "dest")},
        }
    )
    raw = io.BytesIO()
    frame.to_pickle(raw, compression="xz")
    got = flights._read(raw.getvalue())
    assert got["late"].tolist() == [1, 0]
    assert got["columns"].shape == (2, 11)
    assert got["field_starts"][-1] == 3 + 3 * 2 + 1 + 2 + 2 + 1 + 1


def test_tf_idf_agrees_with_scikit_learn():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    mails = [
        "Buy buy NOW, a_1 b",
        "now or never",
        "never buy \u00e9t\u00e9 2024 \u00e9t\u00e9",
        "\u00e9t\u00e9 2024",
        "nothing",
    ]
    reference = text.TfidfVectorizer(min_df=2).fit(mails)
    got = spam_assassin.tf_idf(mails)
    assert got["words"].tobytes().decode().split("\n") == list(reference.get_feature_names_out())
    dense = np.zeros((len(mails), len(reference.get_feature_names_out())), np.float32)
    for i, (start, end) in enumerate(zip(got["starts"], got["starts"][1:], strict=False)):
        dense[i, got["columns"][start:end]] = got["weights"][start:end]
    np.testing.assert_allclose(dense, reference.transform(mails).toarray(), rtol=1e-6)
