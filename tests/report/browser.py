"""A headless Chromium that loads a page in frames of given widths and says what it looks like in each."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROBE = Path(__file__).with_name("probe.js")
FRAME = """<!doctype html><body style="margin:0">
<script>
const seen = {};
addEventListener("message", (e) => {
  seen[e.data.width] = e.data;
  document.body.dataset.seen = JSON.stringify(seen);
});
</script>"""


@dataclass(frozen=True)
class Seen:
    """What the browser reported of a page, by width."""

    facts: dict[int, dict]
    console: list[str]


def find() -> str | None:
    """Return a Chromium, None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def look(page: Path, folder: Path, *, widths: Sequence[int], dark: bool) -> Seen:
    """Load a page and return what it looks like.

    Args:
        page: an HTML file; it is loaded with a probe added.
        folder: an empty folder for the browser's own files.
    """
    probe = f"<head><script>{PROBE.read_text()}</script>"
    probed, frame = folder / "page.html", folder / "frame.html"
    probed.write_text(page.read_text(encoding="utf-8").replace("<head>", probe, 1), encoding="utf-8")
    frames = [
        f'<iframe src="{probed.as_uri()}" style="width:{w}px;height:900px;border:0"></iframe>' for w in widths
    ]
    frame.write_text(FRAME + "".join(frames))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr"]
    flags += [
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=20000",
        f"--window-size={max(widths) + 20},900",
    ]
    flags += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom"]
    browser = subprocess.Popen(
        [str(find()), *flags, frame.as_uri()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"HOME": str(folder)},
    )
    try:
        out, err = browser.communicate(timeout=50)
    finally:
        if browser.poll() is None:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.communicate()
    console = [line for line in err.splitlines() if ":CONSOLE" in line]
    found = re.search(r'data-seen="([^"]*)"', out)
    if found is None:
        raise AssertionError(f"the page reported nothing; the browser said:\n{err[-2000:]}")
    return Seen({int(w): facts for w, facts in json.loads(html.unescape(found[1])).items()}, console)
