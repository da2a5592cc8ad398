"""What goes wrong around lazily pulled tables is an error on all ranks that says why."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch

from omnizen.comm.threads import run_ranks
from omnizen.errors import Disagreement, OmnizenError, PeerLost, UnevenInputs, UserError
from omnizen.sparse.masks import Masks
from omnizen.train.run import Run
from tests.train.helpers import assert_equal, make_run, on_ranks, weights
from tests.train.test_lazy import ROWS, Bag, batches, named, sgd
from tests.train.test_lazy_loops import compare, loop

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")


def failing(size, body, *, timeout_s=10.0):
    """Run ``body(run)`` on ranks that end without closing; returns what each came to."""

    def work(comm):
        run = make_run(comm)
        try:
            return body(run)
        finally:
            run._end(announce=False)

    return run_ranks(size, work, timeout_s=timeout_s)


def test_gradients_that_are_never_zeroed_are_refused() -> None:
    def body(run: Run):
        mine = Bag()
        optimizer = sgd(mine)
        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 2), plan="lazy", reads=named)

        def steps():
            for ids in loader:
                mine(ids).backward()
                optimizer.step()

        with pytest.raises(UserError, match="zero all gradients after the step"):
            steps()

    failing(2, body)


def test_settings_that_change_later_are_refused() -> None:
    def momentum(run, step, model, optimizers):
        optimizers[0].param_groups[0]["momentum"] = 0.9

    def body(run: Run):
        with pytest.raises(UserError, match=r"SGD with momentum=0\.9"):
            loop(Bag(), sgd, batches(run.rank, 2), run, plan="lazy", reads=named, act=momentum)

    failing(2, body)


def test_weights_that_are_written_to_by_hand() -> None:
    torch.manual_seed(0)

    @torch.no_grad()
    def shrink(flush, run, step, model, optimizers):
        if flush:
            run.flush()
        if step % 3 == 0:
            model.table.weight.mul_(0.9)

    compare(Bag(), sgd, 3, act=partial(shrink, True))
    compare(Bag(), sgd, 3, act=partial(shrink, False), reads=None)

    def body(run: Run):
        with pytest.raises(UserError, match=r"table.weight was written to after optimizer.step\(\)"):
            loop(Bag(), sgd, batches(run.rank, 2), run, plan="lazy", reads=named, act=partial(shrink, False))

    failing(2, body)


def test_copies_are_refused_or_stand_alone() -> None:
    def body(run: Run):
        model, taken = Bag(), {}

        def act(run, step, mine, optimizers):
            if step == 2:
                for copied in (copy.deepcopy, pickle.dumps, lambda m: m.table.state_dict()):
                    with pytest.raises(UserError, match=r"lie at their owners; call run.flush\(\)"):
                        copied(mine)
                run.flush()
                taken["copy"], taken["pickled"] = copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))
                taken["weights"] = weights(mine)

        loop(model, sgd, batches(run.rank, 2), run, plan="lazy", reads=named, act=act)
        for kind in ("copy", "pickled"):
            assert_equal(weights(taken[kind]), taken["weights"])
            taken[kind](torch.arange(ROWS)[None]).backward()
        return taken["weights"]

    first, second = on_ranks(2, body)
    assert_equal(first, second)


def test_reads_on_one_rank_only_and_reads_without_a_loader() -> None:
    def one(run: Run):
        mine = Bag()
        with pytest.raises(Disagreement, match="'reads: given' on rank 0, 'reads: none' on rank 1"):
            run.prepare(mine, sgd(mine), batches(run.rank, 2), plan="lazy", reads=None if run.rank else named)

    on_ranks(2, one)

    def no_loader(run: Run):
        mine = Bag()
        with pytest.raises(UserError, match="got no loader; give it one"):
            run.prepare(mine, sgd(mine), plan="lazy", reads=named)

    on_ranks(2, no_loader)


def test_schemes_by_parameter_that_name_lazy_for_an_optimizer_that_cannot() -> None:
    def body(run: Run):
        mine = Bag()
        with pytest.raises(UserError, match="updated by Adam, which changes rows without"):
            run.prepare(mine, torch.optim.Adam(mine.parameters()), plan={"table.weight": "lazy"})

    on_ranks(2, body)


def test_a_forward_that_reads_other_rows_is_refused_before_it_uses_them() -> None:
    def body(run: Run):
        mine = Bag()
        optimizer = sgd(mine)
        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 2), plan="lazy", reads=named)

        def steps():
            for ids in loader:
                mine(torch.arange(ROWS)[None])  # without a gradient, so only forward can notice
                mine(ids).backward()
                optimizer.step()
                optimizer.zero_grad()

        with pytest.raises(OmnizenError, match=r"reads\(batch\) did not name it"):
            steps()

    failing(2, body)


@pytest.mark.parametrize("reads", [named, None])
def test_a_rank_whose_data_end_earlier_is_named(reads) -> None:
    def body(run: Run):
        with pytest.raises(OmnizenError) as caught:
            loop(Bag(), sgd, batches(run.rank, 3)[: 5 - 2 * (run.rank == 1)], run, plan="lazy", reads=reads)
        return caught.value

    for error in failing(3, body):
        assert isinstance(error, UnevenInputs)
        assert "rank 1 has no batch left after 3" in str(error)


@pytest.mark.parametrize("phase", ["batch", "forward", "backward", "stepped", "flush", "save"])
@pytest.mark.parametrize("reads", [named, None])
def test_a_rank_that_ends_in_any_phase_is_lost_to_all_others(phase, reads, tmp_path) -> None:
    """Phases of the fourth step, after which rank 1 does nothing more."""

    class Gone(Exception):
        pass

    def body(run: Run):
        mine = Bag()
        optimizer = sgd(mine)

        def at(now, step):
            if run.rank == 1 and (now, step) == (phase, 3):
                raise Gone

        _, _, loader = run.prepare(mine, optimizer, batches(run.rank, 3), plan="lazy", reads=reads)
        try:
            for step, ids in enumerate(loader):
                at("batch", step)
                loss = mine(ids)
                at("forward", step)
                loss.backward()
                at("backward", step)
                optimizer.step()
                optimizer.zero_grad()
                at("stepped", step)
                if phase == "flush" and step == 3:
                    at("flush", step)
                    run.flush()
                if phase == "save" and step == 3:
                    at("save", step)
                    run.save(tmp_path / "kept")
        except Gone:
            return "gone"
        except PeerLost as error:
            return "lost", error.peer, error.step
        return "nothing noticed"

    first, gone, third = failing(3, body)
    assert gone == "gone"
    for found in (first, third):
        assert found[:1] == ("lost",)
        assert found[1] in (0, 1, 2)


def test_masks_of_lazily_pulled_tables_are_refused() -> None:
    def body(run: Run):
        mine = Bag()
        run.prepare(mine, sgd(mine), plan="lazy")
        with pytest.raises(UserError, match=r"table\.weight is pulled lazily"):
            run.use_masks(Masks({"table.weight": mine.table.weight > 0}))

    on_ranks(2, body)
