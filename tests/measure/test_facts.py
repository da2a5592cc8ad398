import pytest

from omnizen.errors import UserError
from omnizen.measure.facts import DeviceFacts, Facts, GradientFacts, LinkFacts, StepFacts
from tests.plan.builders import job


def some_facts(**changes):
    return Facts(
        created="2026-01-01T00:00:00+00:00",
        torch_version="2.13.0",
        world_size=2,
        model_digest="ab",
        devices=[
            DeviceFacts(
                rank=r,
                host="h",
                device="cpu",
                name="c",
                cores=1.5,
                memory_bytes=2**30,
                merge_bytes_per_s=1e9,
                samples_per_s={"32": 100.25},
            )
            for r in range(2)
        ],
        links=[LinkFacts(source=a, dest=1 - a, latency_s=1e-4, bandwidth_bytes_per_s=1.2e7) for a in range(2)],
        gradients=[
            GradientFacts(
                name="e.weight", kind="row-sparse", shape=(100, 8), density=0.1, densification={"2": 1.7}
            ),
            GradientFacts(name="fc.bias", kind="dense", shape=(10,), dtype="bfloat16"),
        ],
        step=StepFacts(compute_s=0.1, backward_s=0.06, samples=32),
    ).model_copy(update=changes)


def test_save_and_load_give_the_same_facts(tmp_path):
    facts = some_facts()
    assert Facts.load(facts.save(tmp_path / "deep" / "facts.toml")) == facts
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["facts.toml"], "no draft is left"


def test_facts_without_a_step_round_trip():
    facts = some_facts(step=None)
    assert Facts.from_toml(facts.to_toml()) == facts


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("world_size", "world_sise", "did you mean 'world_size'"),
        (
            "bandwidth_bytes_per_s",
            "bandwidth_byte_per_s",
            "links.0: unknown key.*did you mean 'bandwidth_bytes_per_s'",
        ),
        ("backward_s", "backwards", "step: unknown key.*did you mean 'backward_s'"),
    ],
)
def test_a_misspelt_key_names_the_nearest(right, wrong, says):
    with pytest.raises(UserError, match=says):
        Facts.from_toml(some_facts().to_toml().replace(right, wrong))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version = 1\nworld_size =", "not valid TOML"),
        ('torch_version = "2"\nworld_size = 0', "world_size: .*greater than 0"),
        ('version = 7\ntorch_version = "2"\nworld_size = 1', "version: is 7, this release reads 1, 2, 3 and 4"),
        ("world_size = 1", "torch_version: .*required"),
    ],
)
def test_wrong_files_say_what_is_wrong(text, says):
    with pytest.raises(UserError, match=says):
        Facts.from_toml(text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no file .*nothing\.toml"):
        Facts.load(tmp_path / "nothing.toml")


def test_an_unknown_dtype_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'float16'"):
        GradientFacts(name="x", kind="dense", shape=(1,), dtype="flot16")


def test_the_digest_ignores_when_and_sees_what():
    facts = some_facts()
    assert facts.digest() == some_facts(created="later").digest()
    assert facts.digest() != some_facts(world_size=3).digest()


def test_a_file_of_the_release_before_loads_and_keeps_its_digest():
    text = some_facts(version=1).to_toml()
    assert not any(new in text for new in ("imbalance", "meetings", "bits_per_s", "locate_rows_per_s"))
    before = Facts.from_toml(text)
    assert before.meetings is None
    assert before.gradients[0].sparsity().imbalance == {}
    assert before.digest() == some_facts(version=1).digest()


def test_the_pattern_of_each_kind():
    by_row, dense = (g.sparsity() for g in some_facts().gradients)
    assert (by_row.num_rows, by_row.width, by_row.density, by_row.itemsize) == (100, 8, 0.1, 4)
    assert by_row.densification == {1: 1.0, 2: 1.7}
    assert (dense.num_rows, dense.width, dense.density, dense.dense_bytes) == (10, 1, 1.0, 20)
    by_element = GradientFacts(name="x", kind="element-sparse", shape=(20, 30), density=0.01).sparsity()
    assert (by_element.num_rows, by_element.width, by_element.rows) == (600, 1, 6.0)


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("bandwidth_bytes_per_s = 12000000.0", "bandwidth_bytes_per_s = 5e-324", "bandwidth.*0.001, got 5e-324"),
        ("bandwidth_bytes_per_s = 12000000.0", "bandwidth_bytes_per_s = nan", "finite number, got nan"),
        ("dest = 1", "dest = 0", "rank 0 has a link to itself"),
        ("dest = 1", "dest = 9", "rank 9 is named, but world_size is 2"),
        ("source = 1, dest = 0", "source = 0, dest = 1", "link from rank 0 to rank 1 is there twice"),
        ("rank = 1", "rank = 0", "devices: rank 0 is there twice"),
        ('"fc.bias"', '"e.weight"', "gradients: name e.weight is there twice"),
        ("shape = [\n    100,\n    8,\n]", "shape = []", "has no rows"),
        ("shape = [\n    100,\n    8,\n]", "shape = [-1]", r"no tensor of shape \[-1\]"),
        ("shape = [\n    100,\n    8,\n]", f"shape = [{2**61}, {2**61}]", "no tensor of shape"),
        ("2 = 1.7", "two = 1.7", "densification.two"),
        ("2 = 1.7", "2 = -1.7", "densification.2: .*got -1.7"),
        ("32 = 100.25", "big = 100.25", "samples_per_s.big"),
    ],
)
def test_values_that_cannot_be_are_refused(right, wrong, says):
    text = some_facts().to_toml()
    assert right in text
    with pytest.raises(UserError, match=says):
        Facts.from_toml(text.replace(right, wrong))


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xff\xfe\x00", "not a text in UTF-8"), (b"a = " + b"[" * 100_000, "not valid TOML")],
)
def test_files_that_are_no_text_or_no_toml_are_named(tmp_path, content, says):
    path = tmp_path / "facts.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"facts\.toml.*{says}"):
        Facts.load(path)


def test_a_folder_in_the_place_of_a_file_is_named_and_nothing_is_left(tmp_path):
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        Facts.load(tmp_path)
    (tmp_path / "facts.toml").mkdir()
    with pytest.raises(UserError, match=r"facts\.toml cannot be written"):
        some_facts().save(tmp_path / "facts.toml")
    assert [p.name for p in tmp_path.iterdir()] == ["facts.toml"]


def test_a_mark_at_the_beginning_of_a_file_is_no_error(tmp_path):
    path = some_facts().save(tmp_path / "facts.toml")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Facts.load(path) == some_facts()


def test_backward_is_a_part_of_compute():
    with pytest.raises(UserError, match=r"backward_s is 0\.5, more than the 0\.25 of compute_s around it"):
        Facts.from_toml(job().to_toml().replace("backward_s = 0.15", "backward_s = 0.5"))


def test_what_is_as_by_default_takes_no_room_in_a_file():
    text = job().to_toml()
    (bias,) = [part for part in text.split("[[gradients]]") if "lstm.bias" in part]
    assert "overlap" not in bias
    assert "densification" not in bias
    assert text.startswith("version = ")
    assert Facts.from_toml(text) == job()
