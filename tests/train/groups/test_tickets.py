import pytest

from omnizen.errors import UserError
from omnizen.train.groups.tickets import TicketBook, rest_of


def samples(ranges):
    return [i for _, begin, end in ranges for i in range(begin, end)]


@pytest.mark.parametrize(("sizes", "total"), [([1], 1), ([2, 1], 7), ([3, 2, 1], 50), ([4], 9), ([2, 3], 4)])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_an_epoch_is_read_once_and_no_rank_is_without_a_sample(sizes, total, batch) -> None:
    book, read, done, turn = TicketBook(sizes, samples=total, drop_last=False), [], set(), 0
    while len(done) < len(sizes):
        group = (turn * turn + 1) % len(sizes) if turn < 40 else turn % len(sizes)
        found = book.draw(0, turn, group=group, wanted=batch * sizes[group])
        if found:
            assert sizes[group] <= len(samples(found)) <= batch * sizes[group] + 2 * max(sizes)
        else:
            done.add(group)
        read += samples(found)
        turn += 1
    assert sorted(read) == list(range(total))


def test_members_of_a_group_draw_the_same() -> None:
    book = TicketBook([2, 1], samples=20, drop_last=False)
    first = book.draw(0, 0, group=0, wanted=4)
    book.draw(0, 0, group=1, wanted=2)
    assert book.draw(0, 0, group=0, wanted=4) == first
    second = book.draw(0, 1, group=0, wanted=4, confirmed=1)
    assert book.draw(0, 0, group=0, wanted=4) == first
    assert second == [(0, 6, 10)]


def test_what_was_not_confirmed_is_handed_out_again() -> None:
    book = TicketBook([1, 1], samples=10, drop_last=False)
    for number in range(3):
        book.draw(0, number, group=0, wanted=2, confirmed=max(0, number - 1))
    book.lose(0)
    book.lose(0)
    read = [samples(book.draw(0, number, group=1, wanted=4, confirmed=number)) for number in range(4)]
    assert read == [[2, 3, 4, 5], [6, 7, 8, 9], [], []]


def test_what_is_left_over_after_an_epoch_comes_in_the_next_one() -> None:
    book = TicketBook([1, 1], samples=4, drop_last=False)
    book.draw(0, 0, group=0, wanted=2)
    assert samples(book.draw(0, 0, group=1, wanted=2)) == [2, 3]
    assert book.draw(0, 1, group=1, wanted=2, confirmed=1) == []
    book.lose(0)
    assert book.draw(1, 0, group=1, wanted=3) == [(0, 0, 2), (1, 0, 1)]


def test_drop_last_leaves_a_rest_out() -> None:
    book = TicketBook([1, 1], samples=5, drop_last=True)
    found = [book.draw(0, number, group=0, wanted=2) for number in range(3)]
    assert found == [[(0, 0, 2)], [(0, 2, 4)], []]


def test_takes_over_from_what_others_drew() -> None:
    book = TicketBook([1, 1], samples=10, drop_last=False)
    book.leave_out([(0, 4, 6), (0, 0, 2)])
    assert samples(book.draw(0, 5, group=0, wanted=20)) == [2, 3, 6, 7, 8, 9]
    assert rest_of([], 3, 2) == [(3, 0, 2)]


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(UserError, match="2 samples cannot be shared by a group of 3 ranks"):
        TicketBook([1, 3], samples=2, drop_last=False)


def test_a_member_that_is_still_in_the_epoch_before_changes_nothing() -> None:
    book = TicketBook([2, 1], samples=8, drop_last=False)
    drawn = [book.draw(0, number, group=0, wanted=4, confirmed=number) for number in range(3)]
    ahead = book.draw(1, 0, group=0, wanted=4)
    assert book.draw(0, 2, group=0, wanted=4, confirmed=2) == drawn[2] == []
    assert book.draw(1, 0, group=0, wanted=4) == ahead == [(1, 0, 4)]


def test_what_comes_back_is_read_in_its_epoch_while_somebody_is_there() -> None:
    book = TicketBook([1, 1], samples=4, drop_last=False)
    book.draw(0, 0, group=0, wanted=2)
    assert samples(book.draw(0, 0, group=1, wanted=2)) == [2, 3]
    book.lose(0)  # group 1 has not heard that the epoch is over
    assert book.draw(0, 1, group=1, wanted=2, confirmed=1) == [(0, 0, 2)]
    assert book.draw(0, 2, group=1, wanted=2, confirmed=2) == []


def test_a_member_that_lags_behind_hears_of_the_same_end_of_the_epoch() -> None:
    book = TicketBook([2, 1], samples=6, drop_last=False)
    assert book.draw(0, 0, group=0, wanted=4) == [(0, 0, 4)]
    assert book.draw(0, 0, group=1, wanted=4) == [(0, 4, 6)]
    assert book.draw(0, 1, group=0, wanted=4, confirmed=1) == []
    assert book.draw(1, 0, group=0, wanted=4) == [(1, 0, 4)]
    book.lose(1)
    assert book.draw(0, 1, group=0, wanted=4, confirmed=1) == []  # its other member


def test_too_few_for_a_group_are_left_to_the_next_epoch() -> None:
    book = TicketBook([1, 2], samples=5, drop_last=False)
    book.draw(0, 0, group=0, wanted=1)
    assert samples(book.draw(0, 0, group=1, wanted=4)) == [1, 2, 3, 4]
    book.lose(0)
    assert book.draw(0, 1, group=1, wanted=4, confirmed=1) == []
    assert book.draw(1, 0, group=1, wanted=4) == [(0, 0, 1), (1, 0, 3)]


def test_who_takes_over_knows_what_the_host_itself_has_read() -> None:
    book = TicketBook([1, 1], samples=10, drop_last=False)
    for number in range(3):
        book.draw(0, number, group=0, wanted=2, confirmed=number)
    heard = book.read()
    assert heard == [(0, 0, 4)]
    after = TicketBook([1, 1], samples=10, drop_last=False)
    after.leave_out(heard)
    after.lose(0)
    assert samples(after.draw(0, 0, group=1, wanted=20)) == [4, 5, 6, 7, 8, 9]
    assert after.read() == heard


def test_groups_in_different_epochs_go_on_where_they_were() -> None:
    def book() -> TicketBook:
        return TicketBook([1, 1], samples=4, drop_last=False)

    saved, resumed = book(), book()
    saved.draw(0, 0, group=0, wanted=1)
    saved.draw(0, 0, group=1, wanted=3)
    assert saved.draw(0, 1, group=1, wanted=3, confirmed=1) == []
    saved.draw(1, 0, group=1, wanted=3)
    resumed.restore(0, saved.free())
    assert resumed.draw(0, 0, group=0, wanted=1) == []
    assert samples(resumed.draw(1, 0, group=1, wanted=3)) == [3]
    assert resumed.draw(1, 0, group=0, wanted=3) == []
    assert samples(each[1:] for each in resumed.free()) == []
