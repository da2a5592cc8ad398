import io

import pytest

from omnizen.bench.job import Answer, Network
from omnizen.bench.summary import Setting, Trial, e2e_rows, e2e_table

SHAPED = Network(network="namespaces, shaped links", rate_bytes_per_s=3.125e6, dilation=4.0)


def trial(method, step_s, losses, predicted=None):
    answers = [
        Answer(
            rank=rank, size=2, method=method, step_s=[s + rank for s in step_s], losses=[x + rank for x in losses],
            warmup_steps=1, rx_bytes_per_step=100.0 * (1 + rank), bytes_source="interface counters",
            items_per_step=50, predicted_step_s=predicted, network=SHAPED,
        )
        for rank in range(2)
    ]  # fmt: skip
    return Trial(method, answers)


@pytest.fixture
def rows():
    setting = Setting("lm", 2, 100.0, "tokens", {"batch": 32})
    trials = [
        trial("ddp-sparse", [1.0, 3.0], [4.0, 3.0, 2.0]),
        trial("omnizen", [0.0, 1.0], [4.0, 3.0, 2.0, 1.0], predicted=1.2),
        Trial("torchft", failed="not installed"),
        trial("omnizen", [0.0, 1.0], [4.0, 3.0, 2.0, 1.0], predicted=1.4),
    ]
    return {(r.method, r.metric): r for r in e2e_rows(setting, trials)}


def test_rows_hold_the_slowest_rank_and_both_time_scales(rows):
    step = rows["ddp-sparse", "step_s"]
    assert (step.value, step.params["undilated"]) == (3.0, 0.75)
    speed = rows["ddp-sparse", "tokens_per_s"]
    assert speed.value == pytest.approx(100 * 2 / 6)
    assert speed.params["undilated"] == pytest.approx(4 * 100 * 2 / 6)
    assert rows["ddp-sparse", "rx_bytes_per_step"].value == 200.0
    assert rows["ddp-sparse", "rx_bytes_per_step"].params["mean_over_workers"] == 150.0


def test_losses_are_compared_at_the_last_common_step(rows):
    loss = rows["omnizen", "loss"]
    assert (loss.value, loss.params["step"], loss.params["max_relative_difference"]) == (2.5, 3, 0.0)
    assert loss.params["reference"] == "ddp-sparse"


def test_repeats_are_pooled_and_predictions_kept(rows):
    assert rows["omnizen", "tokens_per_s"].repeats == 2
    assert rows["omnizen", "step_s"].repeats == 4
    assert rows["omnizen", "predicted_step_s"].value == pytest.approx(1.3)
    assert ("ddp-sparse", "predicted_step_s") not in rows


def test_a_failed_method_is_a_row_and_the_table_says_so(rows):
    from rich.console import Console

    assert rows["torchft", "failed"].params["reason"] == "not installed"
    text = io.StringIO()
    Console(file=text, width=200).print(e2e_table(list(rows.values())))
    assert "not installed" in text.getvalue()
    assert "2.00" in text.getvalue()
