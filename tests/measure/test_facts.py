import pytest

from omnizen.errors import UserError
from omnizen.measure.facts import DeviceFacts, Facts, GradientFacts, LinkFacts, StepFacts


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
        ('version = 7\ntorch_version = "2"\nworld_size = 1', "version: is 7, this release reads 1"),
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


def test_the_pattern_of_each_kind():
    by_row, dense = (g.sparsity() for g in some_facts().gradients)
    assert (by_row.num_rows, by_row.width, by_row.density, by_row.itemsize) == (100, 8, 0.1, 4)
    assert by_row.densification == {1: 1.0, 2: 1.7}
    assert (dense.num_rows, dense.width, dense.density, dense.dense_bytes) == (10, 1, 1.0, 20)
    by_element = GradientFacts(name="x", kind="element-sparse", shape=(20, 30), density=0.01).sparsity()
    assert (by_element.num_rows, by_element.width, by_element.rows) == (600, 1, 6.0)
