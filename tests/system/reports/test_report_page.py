"""Report page in a real browser: headless Chromium with chromedriver, at phone and desktop width, and printed.

Checks layout (nothing wider than the screen or the paper, no text cut off), the console (empty), the network (unused),
and dark mode (contrast). Skipped without Chromium or chromedriver (Debian: apt-get install chromium chromium-driver).
"""

import base64
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from bench.records.status import TrialStatus
from reports.figures import CHARTS
from reports.figures.drawing import style
from reports.output import write_report
from reports.output.write_report import build, build_training
from reports.summary.prices import Pricing
from tests.support.reports import showcase, synthetic, training_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PAGE_LOAD_SEC = 120.0  # generous, for a busy machine
SETTLE_SEC = 0.3
A4_LANDSCAPE_PX = 1031  # 297 mm less the margins of 12 mm, at 96 px an inch
MIN_CONTRAST = 4.5  # WCAG 2.2, AA, for text

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no chromium with chromedriver on this machine; apt-get install chromium chromium-driver",
)


class Browser:
    """A Chromium with its own profile, and the pages it can open by name."""

    def __init__(self, profile: Path, pages: dict[str, Path]) -> None:
        self.pages = pages
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        self.driver.set_page_load_timeout(PAGE_LOAD_SEC)

    def run_devtools_command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run a command of the DevTools protocol."""
        answer: dict[str, Any] = self.driver.execute_cdp_cmd(method, parameters)
        return answer

    def resize(self, width: int) -> None:
        """Emulate a screen of this width, a phone's below 600."""
        self.run_devtools_command(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )

    def open_page(self, which: str, width: int, *, dark: bool = False) -> None:
        """Load a page on a screen of this width."""
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.run_devtools_command("Emulation.setEmulatedMedia", media="", features=[scheme])
        for log in ("browser", "performance"):
            self.driver.get_log(log)  # discards the previous page's entries
        self.driver.get(self.pages[which].as_uri())
        time.sleep(SETTLE_SEC)  # for a late console message

    def evaluate(self, expression: str) -> Any:
        return self.driver.execute_script(f"return {expression}")

    def unfold(self) -> None:
        self.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")

    def console_messages(self) -> list[str]:
        """Return the console's messages since the page was opened: errors, and violations of its policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of runs: bad (long texts and numbers), other workloads only, all workloads, a small one, and a training."""
    good, bad, kinds, full, earlier = map(tmp_path_factory.mktemp, ("good", "bad", "kinds", "full", "earlier"))
    synthetic.write_run(good)
    long_name = "w" * 60 + " <b>|=cmd"
    trials = (*synthetic.quick(), synthetic.trial(long_name), synthetic.trial("too-big", max_seq_len=4096))
    run = synthetic.write_run(bad, synthetic.record(trials), speeds={long_name: 12345.678})
    for plan in run.planned[-4:]:
        reason = "out of memory: " + "0123456789" * 30
        log = ["x" * 300, "<script>alert(1)</script>"]
        synthetic.rewrite(bad, plan, status=TrialStatus.OUT_OF_MEMORY, reason=reason, steps=0, log_tail=log)
    (bad / "trials" / ("stranger-" * 15)).mkdir()
    other = (*synthetic.other_kinds(), *(synthetic.trial(f"{long_name}{n}", kind="distributed") for n in range(3)))
    run = synthetic.write_run(kinds, synthetic.record(other, workers=1))
    for plan in run.planned:
        measurements = [*synthetic.measurements_of(plan.trial), *synthetic.telemetry()]
        measurements += [
            synthetic.measurement(f"number_{n}_gb_per_sec", 1234.5, note="n" * 200, wide=1) for n in range(30)
        ]
        measurements += [
            synthetic.measurement("x" * 90 + "_sec", 1e-5, **{"k" * 90: "v" * 300, "n": n}) for n in range(3)
        ]
        synthetic.rewrite(kinds, plan, measurements=measurements, flags=["f" * 300])
    trained = training_run.write_run(tmp_path_factory.mktemp("training"), training_run.SCORED)
    showcase.write(full)
    showcase.write(earlier, "20261119-080000-all")
    price = Pricing(usd_per_gpu_hour=2.0, source="a price list with a long name, 2025-06")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "to_png", lambda _: b"")  # a third of the time, and not on any page
        built = {
            "training": build_training(trained).index,
            "kinds": build(kinds).index,
            "bad": build(bad, pricing=price).index,
            "full": build(full, against=earlier).index,
        }
        patch.setattr(write_report, "CHARTS", ())
        return built | {"good": build(good).index}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, pages: dict[str, Path]) -> Iterator[Browser]:
    chromium = Browser(tmp_path_factory.mktemp("profile"), pages)
    yield chromium
    chromium.driver.quit()


@pytest.mark.parametrize("which", ["bad", "kinds", "full", "training"])
def test_nothing_is_wider_than_the_screen_or_the_paper_logged_or_fetched(browser: Browser, which: str) -> None:
    browser.open_page(which, 390)
    assert browser.driver.title != ""
    assert browser.console_messages() == []
    assert browser.requests() == [browser.pages[which].as_uri()]
    browser.unfold()
    for width in (390, 800, 1300, 1440):
        browser.resize(width)
        assert browser.evaluate("window.innerWidth") == width
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.resize(A4_LANDSCAPE_PX)
    browser.run_devtools_command("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("document.documentElement.scrollWidth") <= A4_LANDSCAPE_PX


def test_every_figure_is_on_the_page_of_a_run_with_everything_in_its_colours_and_in_print(browser: Browser) -> None:
    browser.open_page("full", 1440)
    drawn = browser.evaluate("[...document.querySelectorAll('figure')].map(one => one.id)")
    assert drawn == [chart.name for chart in sorted(CHARTS, key=lambda chart: chart.is_folded)]
    assert browser.evaluate("[...document.querySelectorAll('details.figure summary span')].every(p => p.innerText)")
    page = browser.pages["full"].read_text()
    assert not [svg for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if re.search(r"#[0-9a-f]{6}\b", svg)]
    assert len(page) <= 2_000_000
    printed = base64.b64decode(browser.run_devtools_command("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert 5 <= len(re.findall(rb"/MediaBox ", printed)) <= 2 * len(CHARTS)
    browser.run_devtools_command("Emulation.setEmulatedMedia", media="print")
    seen = "[...document.querySelectorAll('figure svg')].map(one => one.getBoundingClientRect().height > 0)"
    assert browser.evaluate(seen) == [True] * len(CHARTS)
    assert browser.evaluate("document.querySelector('section.screen-only').offsetHeight") == 0


@pytest.mark.parametrize("which", ["bad", "full", "kinds"])
def test_the_text_of_each_figure_is_inside_it_and_readable_on_a_phone(browser: Browser, which: str) -> None:
    browser.open_page(which, 390)
    browser.unfold()
    shown, outside, smallest = browser.evaluate(
        """(() => {
             const shown = [...document.querySelectorAll('figure svg')].filter(e => e.getBoundingClientRect().height);
             const texts = shown.flatMap(svg => [...svg.querySelectorAll('text')].map(t => [svg, t]));
             const outside = texts.filter(([svg, t]) => {
               const frame = svg.getBoundingClientRect(), box = t.getBoundingClientRect();
               return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1
                 || box.top < frame.top - 1;
             });
             return [shown.length, outside.map(([_, t]) => t.textContent),
                     Math.min(...texts.map(([_, t]) => t.getBoundingClientRect().height))];
           })()"""
    )
    figures = browser.evaluate("document.querySelectorAll('figure').length")
    assert figures > 2
    assert shown == figures
    assert outside == []
    assert smallest >= 10  # CSS pixels from ascender to descender


CONTRAST = """(() => {
    const light = c => {
        const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(Number).map(v => v / 255)
            .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = one => {
        for (let at = one; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (!/, 0\\)$/.test(colour)) return colour;
        }
    };
    const found = [...document.querySelectorAll('h1,h2,h3,p,li,dt,dd,th,td,small,summary,a,figure svg text')]
        .filter(one => one.getBoundingClientRect().height > 0 && one.textContent.trim());
    return found.map(one => {
        const style = getComputedStyle(one);
        const [ink, paper] = [light(one.tagName === 'text' ? style.fill : style.color), light(behind(one))];
        return [(Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05), one.textContent.trim().slice(0, 60)];
    }).sort((a, b) => a[0] - b[0]).slice(0, 3);
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_enough_contrast(browser: Browser, dark: bool) -> None:
    browser.open_page("full", 1440, dark=dark)
    browser.unfold()
    weakest = browser.evaluate(CONTRAST)
    assert weakest[0][0] >= MIN_CONTRAST, weakest
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (paper < 50) is dark


def test_the_finding_the_note_and_the_table_are_on_the_first_screen(browser: Browser) -> None:
    browser.open_page("good", 1440)
    bottoms = browser.evaluate(
        "['h1', '.note', 'table'].map(s => document.querySelector(s).getBoundingClientRect().bottom)"
    )
    assert max(bottoms) <= 900
