"""The report as a real browser shows it."""

import pytest

from omnizen.report.load import load_runs
from omnizen.report.page import render
from tests.report.browser import find, look
from tests.report.sample_run import write_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find() is None, reason="no Chromium on this machine"),
]
WIDTHS = (1280, 390)
LONG_NAME = "transformer.encoder.layers.11.self_attention.output_projection.low_rank_adapter.embedding.weight"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    write_run(folder / "ddp", "ddp")
    paced = {
        "network": "loopback, paced in software",
        "embedding": LONG_NAME,
        "slow_rank": 1,
        "stall": {(2, 20): 2.0},
    }
    write_run(folder / "omnizen", **paced)
    path = folder / "report.html"
    path.write_text(render(load_runs([folder / "ddp", folder / "omnizen"])))
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_is_readable_and_draws_every_chart_without_complaint(page, tmp_path, dark):
    seen = look(page, tmp_path, widths=WIDTHS, dark=dark)
    assert seen.console == []
    assert sorted(seen.facts) == sorted(WIDTHS)
    for width, shown in seen.facts.items():
        assert shown["failures"] == []
        assert shown["dark"] == dark
        assert shown["scroll"] == width, "the page scrolls sideways"
        assert shown["outside"] == []
        assert shown["charts"] == shown["drawn"] == 10
        assert shown["clipped"] == []
        assert shown["faint"] == [], "contrast under 4.5"
        assert shown["background"] == ("rgb(20, 23, 29)" if dark else "rgb(247, 247, 245)")
        assert shown["ink"] == ["rgb(166, 173, 186)" if dark else "rgb(86, 93, 109)"]
