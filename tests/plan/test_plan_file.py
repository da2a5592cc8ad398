import pytest

from omnizen.comm.threads import run_ranks
from omnizen.errors import UserError
from omnizen.plan.plan import Plan
from omnizen.plan.search import make_plan
from omnizen.plan.share import share_plan
from tests.plan.builders import job


def test_save_and_load_give_the_same_plan(tmp_path):
    plan = make_plan(job(8))
    assert Plan.load(plan.save(tmp_path / "plan.toml")) == plan


def test_the_job_that_the_plan_was_made_for_is_accepted():
    make_plan(job(8)).check(8, "abcd", "2.13.0")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((4, "abcd", "2.13.0"), "made for 8 workers, this job has 4; .*`omnizen plan`"),
        ((8, "ef01", "2.13.0"), "made for another model .*digest abcd, this model's is ef01.*`omnizen plan`"),
        ((8, "abcd", "2.9.1"), "made for torch 2.13.0, this is torch 2.9.1; .*`omnizen plan`"),
    ],
)
def test_another_job_is_refused_with_the_reason(given, says):
    with pytest.raises(UserError, match=says):
        make_plan(job(8)).check(*given)


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("bucket_bytes", "bucket_byte", "unknown key.*did you mean 'bucket_bytes'"),
        ("predicted_s", "predicted", "tensors.0: unknown key.*did you mean 'predicted_s'"),
        ('scheme = "dense"', 'scheme = "dence"', "scheme: there is no such scheme.*did you mean 'dense'"),
        ('strategy = "sync"', 'strategy = "async"', "strategy: .*'sync'"),
        ("version = 1", "version = 2", "reads 1; run `omnizen plan` again"),
    ],
)
def test_wrong_files_say_what_is_wrong(right, wrong, says):
    with pytest.raises(UserError, match=says):
        Plan.from_toml(make_plan(job(4)).to_toml().replace(right, wrong))


def test_an_unknown_tensor_names_the_nearest():
    with pytest.raises(UserError, match=r"did you mean 'lstm\.weight'"):
        make_plan(job(4)).scheme("lstm.weigth")


def test_all_ranks_hold_rank_0s_plan():
    plan = make_plan(job(3))
    assert run_ranks(3, lambda comm: share_plan(plan if comm.rank == 0 else None, comm)) == [plan] * 3


def test_a_plan_that_rank_0_lacks_is_an_error_everywhere():
    plan = make_plan(job(2))
    with pytest.raises(UserError, match="rank 0 has no plan"):
        run_ranks(2, lambda comm: share_plan(plan if comm.rank == 1 else None, comm))
