"""The page in a real browser: headless Chromium, spoken to over its debugging pipe, on a phone's and a desktop's width.

Checks layout (nothing wider than the screen), the console (silent), the network (untouched) and dark mode. Skips where
there is no Chromium (Debian: apt-get install chromium).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.result import End
from reports.build import build
from reports.prices import Pricing
from tests.unit.reports import synthetic

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ANSWER_SEC = 60.0
SETTLE_SEC = 0.3
A4_LANDSCAPE_PX = 1031  # 297 mm less the margins of 12 mm, at 96 px an inch

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine; apt-get install chromium")


class Browser:
    """One page in a Chromium of our own. Messages of the DevTools protocol, each ended by a NUL, over two pipes."""

    def __init__(self, profile: Path) -> None:
        to_read, self._to_chromium = os.pipe()
        self._from_chromium, to_write = os.pipe()
        # Chromium reads descriptor 3 and writes 4; a shell renumbers ours without touching this process's own.
        flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        flags += f"--disable-component-update --disable-sync --remote-debugging-pipe --user-data-dir='{profile}'"
        self._process = subprocess.Popen(
            ("bash", "-c", f'exec "$0" {flags} 3<&{to_read} 4>&{to_write}', str(CHROMIUM)),
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_chromium, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_SEC
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path, width: int, *, dark: bool = False) -> None:
        """Load a page as a screen of this width would show it."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + ANSWER_SEC
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(deadline))
        time.sleep(SETTLE_SEC)  # for a late console message, which would come as an event with the next call

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def complaints(self) -> list[str]:
        """What the console, the log or an exception said since the page was opened."""
        loud = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in loud]

    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to_chromium)
        os.close(self._from_chromium)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from_chromium], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium did not answer within {ANSWER_SEC:.0f} s"
            piece = os.read(self._from_chromium, 1 << 20)
            assert piece, f"Chromium ended with exit code {self._process.wait()}"
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(message)
        return answer


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    one = Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A good run, and one with everything that makes a page wide: long names, failures, prices, many columns."""
    good, bad = tmp_path_factory.mktemp("good"), tmp_path_factory.mktemp("bad")
    synthetic.write_run(good)
    long_name = "w" * 60 + " <b>|=cmd"
    trials = (*synthetic.quick(), synthetic.trial(long_name), synthetic.trial("too-big", max_seq_len=4096))
    run = synthetic.write_run(bad, synthetic.record(trials), speeds={long_name: 12345.678})
    for plan in run.planned[-4:]:
        reason = "out of memory: " + "0123456789" * 30
        log = ["x" * 300, "<script>alert(1)</script>"]
        synthetic.write_result(
            bad, synthetic.result(plan, status=End.OUT_OF_MEMORY, reason=reason, steps=0, log_tail=log)
        )
    (bad / "trials" / ("stranger-" * 15)).mkdir()
    kinds = tmp_path_factory.mktemp("kinds")
    other = (*synthetic.other_kinds(), *(synthetic.trial(f"{long_name}{n}", kind="distributed") for n in range(3)))
    run = synthetic.write_run(kinds, synthetic.record(other, workers=1))
    for plan in run.planned:
        taken = [*synthetic.measurements_of(plan.trial.kind), *synthetic.telemetry()]
        taken += [synthetic.measurement(f"number_{n}_gb_per_sec", 1234.5, note="n" * 200, wide=1) for n in range(30)]
        taken += [synthetic.measurement("x" * 90 + "_sec", 1e-5, **{"k" * 90: "v" * 300, "n": n}) for n in range(3)]
        synthetic.write_result(kinds, synthetic.result(plan, measurements=taken, flags=["f" * 300]))
    return {
        "good": build(good).index,
        "kinds": build(kinds).index,
        "bad": build(bad, pricing=Pricing(usd_per_gpu_hour=2.0, source="a price list with a long name, 2025-06")).index,
    }


@pytest.mark.parametrize("width", [390, 800, 1300, 1440])
@pytest.mark.parametrize("which", ["good", "bad", "kinds"])
def test_nothing_is_wider_than_the_screen(browser: Browser, pages: dict[str, Path], which: str, width: int) -> None:
    browser.open(pages[which], width)
    assert browser.evaluate("window.innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("which", ["good", "bad", "kinds"])
def test_nothing_is_wider_than_a_printed_page(browser: Browser, pages: dict[str, Path], which: str) -> None:
    browser.open(pages[which], A4_LANDSCAPE_PX)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("document.documentElement.scrollWidth") <= A4_LANDSCAPE_PX


@pytest.mark.parametrize("which", ["good", "bad"])
def test_the_console_is_silent_and_nothing_else_is_fetched(
    browser: Browser, pages: dict[str, Path], which: str
) -> None:
    browser.open(pages[which], 1440)
    assert browser.evaluate("document.title") != ""
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [pages[which].as_uri()]


@pytest.mark.parametrize(("width", "seen"), [(390, "narrow"), (1440, "wide")])
def test_each_figure_is_shown_once_in_the_shape_that_fits(
    browser: Browser, pages: dict[str, Path], width: int, seen: str
) -> None:
    browser.open(pages["good"], width)
    shown = browser.evaluate(
        "[...document.querySelectorAll('figure svg')].filter(e => e.getBoundingClientRect().height > 0)"
        ".map(e => e.classList[0])"
    )
    assert shown == [seen, seen]


@pytest.mark.parametrize("width", [390, 1440])
def test_no_text_of_a_figure_is_cut_off(browser: Browser, pages: dict[str, Path], width: int) -> None:
    browser.open(pages["bad"], width)
    cut = browser.evaluate(
        """[...document.querySelectorAll('figure svg')].flatMap(svg => {
             const frame = svg.getBoundingClientRect();
             if (frame.height === 0) return [];
             return [...svg.querySelectorAll('text')].filter(t => {
               const box = t.getBoundingClientRect();
               return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
             }).map(t => t.textContent);
           })"""
    )
    assert cut == []


def test_text_in_figures_is_large_enough_to_read_on_a_phone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["good"], 390)
    smallest = browser.evaluate(
        "Math.min(...[...document.querySelectorAll('figure svg.narrow text')]"
        ".map(t => t.getBoundingClientRect().height))"
    )
    assert smallest >= 10  # CSS pixels from ascender to descender


def test_dark_mode_reaches_page_and_figures(browser: Browser, pages: dict[str, Path]) -> None:
    look = """(() => {
        const light = c => c.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) / 765;
        const text = document.querySelector('figure svg.wide text');
        return [light(getComputedStyle(document.body).backgroundColor), light(getComputedStyle(document.body).color),
                light(getComputedStyle(text).fill)];
    })()"""
    browser.open(pages["good"], 1440, dark=False)
    paper, ink, drawn = browser.evaluate(look)
    assert paper > 0.9
    assert max(ink, drawn) < 0.5
    browser.open(pages["good"], 1440, dark=True)
    paper, ink, drawn = browser.evaluate(look)
    assert paper < 0.2
    assert min(ink, drawn) > 0.6


def test_the_finding_the_note_and_the_table_are_on_the_first_screen(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["good"], 1440)
    bottoms = browser.evaluate(
        "['h1', '.note', 'table'].map(s => document.querySelector(s).getBoundingClientRect().bottom)"
    )
    assert max(bottoms) <= 900
