"""Tables on terminals of 80 and fewer columns."""

import io

import pytest
from rich.console import Console

from omnizen import catalog
from omnizen.bench.rows import measured
from omnizen.bench.summary import e2e_table
from omnizen.bench.tables import show, table
from omnizen.cli.cite import methods


def printed(width, *tables):
    text = io.StringIO()
    show(Console(file=text, width=width), *tables)
    return text.getvalue()


@pytest.mark.parametrize("width", [200, 80, 30, 10])
def test_names_and_numbers_stay_whole_at_any_width_while_texts_fold(width):
    name, number = "omnireduce-streaming", "12,345.678"
    made = table(
        "one", {"scheme": "name", "ms\nof all": "number", "what it says": "text"}, [(name, number, "word " * 30)]
    )
    lines = printed(width, made).splitlines()
    assert any(name in line and number in line for line in lines)
    assert sum(line.count("word") for line in lines) == 30
    if width >= 80:
        assert max(map(len, lines)) <= width


def test_all_methods_are_listed_by_their_whole_names_in_80_columns():
    lines = printed(80, *methods()).splitlines()
    starts = {word for line in lines for word in line.split()[:1]}
    assert {*catalog.REDUCERS, *catalog.CODECS, *catalog.SELECTORS, *catalog.WRAPPERS} <= starts
    assert max(map(len, lines)) <= 80


def test_methods_side_by_side_fit_into_80_columns():
    shared = {"bench": "e2e", "case": "lm", "method": "omnizen-lazy-bf16", "hosts": 16, "rate_mbit": 100.0}
    values = {"tokens_per_s": 123_456.0, "step_s": 12.345, "predicted_step_s": 12.345}
    values |= {"rx_bytes_per_step": 1234.56e6, "loss": 10.1234}
    params = {"max_relative_difference": 1.2e-9}
    rows = [measured([v], **shared, metric=m, unit="tokens/s", params=params) for m, v in values.items()]
    lines = printed(80, e2e_table(rows)).splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if "omnizen-lazy-bf16" in line]
    assert line.split() == [
        "omnizen-lazy-bf16",
        "123,456",
        "1.00",
        "12.345",
        "12.345",
        "1234.56",
        "10.1234",
        "1.2e-09",
    ]
