from omnizen.plan.timeline import Transfer, exposed_s, fill_buckets


def test_what_ends_before_backward_is_hidden():
    assert exposed_s([Transfer(0.2, 0.3), Transfer(0.5, 0.5)], backward_s=1.0) == 0.0


def test_transfers_wait_for_the_wire_in_the_order_of_readiness():
    late, early = Transfer(ready_s=0.5, wire_s=1.0), Transfer(ready_s=0.0, wire_s=1.0)
    assert exposed_s([late, early], backward_s=1.0) == 1.0


def test_an_idle_wire_does_not_count():
    assert exposed_s([Transfer(0.0, 0.1), Transfer(0.9, 0.2)], backward_s=1.0) == 0.10000000000000009


def test_merging_is_never_hidden():
    assert exposed_s([Transfer(0.0, 0.1, cpu_s=0.25)], backward_s=1.0) == 0.25


def test_nothing_to_send():
    assert exposed_s([], backward_s=1.0) == 0.0


def test_buckets_fill_from_the_last_tensor():
    assert fill_buckets([5, 1, 1, 9, 2], 4) == [[4, 3], [2, 1, 0]]
    assert fill_buckets([1, 1, 1], 100) == [[2, 1, 0]]
    assert fill_buckets([], 100) == []
