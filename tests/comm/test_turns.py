import threading

import pytest

from omnizen.comm.turns import Turns


def test_work_is_done_in_order_by_whoever_is_free() -> None:
    turns, done = Turns("turns"), []

    def job(i):
        return lambda: done.append(i) or i

    jobs = [turns.submit(job(i)) for i in range(200)]
    assert [job.wait() for job in reversed(jobs)] == list(reversed(range(200)))
    assert done == list(range(200))
    turns.close()


def test_nobody_needs_to_wait_for_work_to_be_done() -> None:
    turns, seen = Turns("turns"), threading.Event()
    turns.submit(seen.set)
    assert seen.wait(10)
    turns.close()


def test_a_waiter_leaves_alone_what_the_thread_has_begun() -> None:
    turns, begun, go_on = Turns("turns"), threading.Event(), threading.Event()
    order = []

    def slow():
        begun.set()
        assert go_on.wait(10)
        order.append("slow")

    first, second = turns.submit(slow), turns.submit(lambda: order.append("quick"))
    assert begun.wait(10)
    threading.Timer(0.05, go_on.set).start()
    second.wait()
    assert order == ["slow", "quick"]
    first.wait()
    turns.close()


def test_an_error_is_raised_to_who_waits_and_later_work_is_still_done() -> None:
    turns = Turns("turns")
    bad, good = turns.submit(lambda: 1 // 0), turns.submit(lambda: 7)
    with pytest.raises(ZeroDivisionError):
        bad.wait()
    assert good.wait() == 7
    turns.close()
