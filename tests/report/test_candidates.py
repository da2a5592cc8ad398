"""The section that puts every scheme beside the plan."""

import tomllib

import tomli_w

from omnizen.report.load import load_runs
from omnizen.report.page import render
from tests.report.sample_run import write_run
from tests.report.test_page import figures, text_of


def changed(folder, name, change):
    path = folder / name
    content = tomllib.loads(path.read_text())
    change(content)
    path.write_text(tomli_w.dumps(content))


def test_exact_candidates_are_drawn_with_the_measured_step(tmp_path):
    write_run(tmp_path / "run")
    page = render(load_runs([tmp_path / "run"]))
    bars, marks = figures(page)["candidates-0"]["data"]
    assert bars["y"][0] == "as planned"
    assert {"dense", "zen-coo", "agsparse"} <= set(bars["y"])
    assert "topk" not in bars["y"]
    assert marks["y"] == ["as planned"]
    assert "price of selecting and quantising was not measured" in text_of(page)


def test_lossy_ones_are_there_when_their_price_was_measured_and_tried_ones_with_what_they_took(tmp_path):
    write_run(tmp_path / "run")

    def price(facts):
        for device in facts["devices"]:
            device |= {"select_elements_per_s": 1e8, "quantise_elements_per_s": 1e8}
        facts["version"] = 3

    def tried(plan):
        plan["tensors"][0] |= {"measured_s": 0.45, "origin": "trial"}
        plan["tensors"][0]["rejected"][0]["measured_s"] = 0.55

    changed(tmp_path / "run", "facts.toml", price)
    changed(tmp_path / "run", "plan.toml", tried)
    bars, marks = figures(render(load_runs([tmp_path / "run"])))["candidates-0"]["data"]
    assert {"topk", "powersgd", "qsgd"} <= set(bars["y"])
    lossy = bars["marker"]["color"][bars["y"].index("topk")]
    assert lossy != bars["marker"]["color"][bars["y"].index("dense")]
    assert marks["y"] == ["as planned", "zen-coo"]
    scale = bars["x"][0] / 1.08  # of the axis: the plan's prediction is 1.08 s
    assert abs(marks["x"][1] / scale - (1.08 + 0.1)) < 1e-9


def test_a_run_without_all_links_says_so(tmp_path):
    write_run(tmp_path / "run")
    changed(tmp_path / "run", "facts.toml", lambda facts: facts["links"].pop())
    page = render(load_runs([tmp_path / "run"]))
    assert "do not say what its links or gradients are" in text_of(page)
    assert "candidates-0" not in figures(page)
