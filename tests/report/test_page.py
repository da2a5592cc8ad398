import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from omnizen.errors import UserError
from omnizen.report import numbers
from omnizen.report.analysis import summarise
from omnizen.report.load import load_runs
from omnizen.report.markup import chart
from omnizen.report.page import render, save_report, write_report
from tests.report.sample_run import SIZE, plan, write_run

EVIL = "<script>alert('x')</script>&\"@wire"


def text_of(page: str) -> str:
    """Return what a reader sees: no scripts, no styles, plain spaces."""
    seen: list[str] = []

    class Reader(HTMLParser):
        hidden = 0

        def handle_starttag(self, tag, attrs):
            self.hidden += tag in ("script", "style")

        def handle_endtag(self, tag):
            self.hidden -= tag in ("script", "style")
            seen.append(" ")

        def handle_data(self, data):
            if not self.hidden:
                seen.append(data)

    Reader().feed(page)
    return re.sub(r"\s+", " ", "".join(seen).replace("\xa0", " "))


def figures(page: str) -> dict[str, dict]:
    found = re.findall(r'<script type="application/json" data-chart="([^"]+)">(.*?)</script>', page)
    return {name: json.loads(data) for name, data in found}


@pytest.fixture(scope="module")
def page(demo):
    return render(demo)


def test_numbers_on_the_page_are_those_of_the_events(page, demo):
    shown = text_of(page)
    for run in demo:
        summary = summarise(run)
        assert numbers.seconds(summary.step_s) in shown
        assert numbers.seconds(summary.step_s / run.run.dilation) in shown
        assert numbers.nbytes(summary.rx_bytes) in shown
    for tensor in plan("embedding.weight", SIZE)["tensors"]:
        assert tensor["name"] in shown
        for other in tensor["rejected"]:
            assert f"{other['scheme']} {numbers.seconds(other['predicted_s'])}" in shown
            assert other["reason"] in shown


def test_charts_hold_the_values_of_the_events(page, demo):
    drawn = figures(page)
    assert {"time-0", "time-1", "steps", "loss-steps", "loss-seconds", "links-1", "plan-1", "facts-0"} <= set(drawn)
    bars = {bar["name"]: bar["x"] for bar in drawn["time-1"]["data"]}
    parts = summarise(demo[1]).parts
    assert bars["compute"] == [parts[rank]["compute"] for rank in range(SIZE)]
    assert bars["wire"] == [parts[rank]["wire"] for rank in range(SIZE)]
    ddp = drawn["steps"]["data"][0]
    assert ddp["y"] == [e.step_s for e in demo[0].ranks[0].steps]


def test_each_chart_has_a_summary_in_words_and_each_table_a_caption(page):
    for name in figures(page):
        assert re.search(rf'<figcaption id="{name}-text">[^<]', page)
        assert f'aria-describedby="{name}-text"' in page
    assert page.count("<table>") == page.count("<caption>") > 5


def test_headings_do_not_skip_a_level(page):
    levels = [int(level) for level in re.findall(r"<h(\d)[ >]", page.split("<noscript>")[0])]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_the_page_names_no_resource_to_load(page):
    own = re.sub(r"<script>/\*.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(link|img|iframe|object|embed)\b|\ssrc=|url\(|@import", own)
    assert "default-src 'none'" in page


def test_names_from_a_run_cannot_become_markup(tmp_path):
    write_run(tmp_path / "a", EVIL)
    write_run(tmp_path / "b", "omnizen", embedding=EVIL, host=EVIL + "{}", stall={(1, 9): 3.0})
    page = render(load_runs([tmp_path / "a", tmp_path / "b"]))
    assert "<script>alert" not in page
    assert f"host {EVIL}1" in text_of(page)
    for figure in figures(page).values():
        assert "<script" not in json.dumps(figure)


def test_sections_without_data_say_why(tmp_path):
    write_run(tmp_path, "ddp", steps=3)
    shown = text_of(render(load_runs([tmp_path])))
    assert "ddp ran without a plan, so nothing was predicted." in shown
    assert "Nothing: no run directory holds a facts.toml." in shown
    assert "ddp did not count bytes per link" in shown
    assert "Side by side" not in shown


def test_many_workers_get_tables_of_links_instead_of_a_matrix(tmp_path):
    write_run(tmp_path, size=16, steps=7)
    page = render(load_runs([tmp_path]))
    assert "the 20 lowest of 240" in page
    assert "the 20 highest of 240" in page
    assert not {"links-0", "facts-0"} & set(figures(page))


def test_a_loss_that_is_not_a_number_does_not_break_the_page(tmp_path):
    write_run(tmp_path, steps=6, loss_from=lambda step: float("nan") if step > 2 else 5.0)
    page = render(load_runs([tmp_path]))
    assert figures(page)["loss-steps"]["data"][0]["y"][3:] == [None] * 3


def test_the_file_goes_to_the_run_or_to_the_folder_that_runs_share(tmp_path):
    paths = [write_run(tmp_path / "demo" / m, m, steps=7) for m in ("ddp", "omnizen")]
    assert write_report(paths[:1]) == (paths[0] / "report.html").resolve()
    assert write_report(paths) == (tmp_path / "demo" / "report.html").resolve()
    assert (paths[1] / "trace.json").exists()
    assert not (paths[0] / "trace.json").exists()
    out = tmp_path / "new" / "r.html"
    assert write_report(paths, out) == out
    with pytest.raises(UserError, match="cannot be written"):
        write_report(paths, paths[0])


def test_data_of_a_chart_cannot_end_its_script():
    evil = {"data": [{"name": "</script><script>alert(1)"}], "layout": {"height": 1}}
    text = chart("c", "t", evil, "s", "").text
    assert text.count("</script>") == 1
    assert figures(text) == {"c": evil}


def test_a_trace_that_cannot_be_written_is_a_note_beside_the_report(tmp_path):
    (run,) = load_runs([write_run(tmp_path / "run")])
    (tmp_path / "run" / "trace.json").mkdir()
    assert save_report([run], tmp_path / "out.html").exists()
    (problem,) = run.problems
    assert problem.startswith(f"{tmp_path / 'run' / 'trace.json'} cannot be written: it is a folder")


@pytest.mark.parametrize("name", ["events-rank1.jsonl", "facts.toml", "plan.toml"])
def test_a_report_does_not_overwrite_the_run(tmp_path, name):
    path = write_run(tmp_path / "run")
    before = (path / name).read_bytes()
    with pytest.raises(UserError, match="is read, and would be lost"):
        write_report([path], path / name)
    assert (path / name).read_bytes() == before
