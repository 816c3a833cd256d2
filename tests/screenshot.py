"""Screenshot for the documentation: `python -m tests.screenshot [FILE]` writes docs/report.png with headless Chromium.

It shows the top of a report's page for a synthetic run (tests/support/reports/showcase.py): two nodes with an A10 each,
numbers with seeded noise. No number on it was measured, and the picture says so.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from reports.output.build import build
from tests.support.reports import showcase

FILE = Path(__file__).resolve().parents[1] / "docs" / "report.png"
WIDTH, HEIGHT, SCALE = 1400, 949, 0.86
KICKER = "qlora-fleet benchmark report"  # the page's first line
COLOURS = 64  # enough for the page's palette with antialiased text; a true-colour PNG is four times as large


def main(file: Path = FILE) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium on PATH; on Debian, run `apt-get install chromium`")
    with tempfile.TemporaryDirectory() as folder:
        run, shot = Path(folder, showcase.RUN_ID), Path(folder, "shot.png")
        showcase.write_a10(run)
        page = build(run).index
        text = page.read_text(encoding="utf-8")
        if KICKER not in text:
            sys.exit(f"the page does not contain {KICKER!r}; update KICKER in {__file__}")
        page.write_text(text.replace(KICKER, f"{KICKER}: an example with synthetic numbers"), encoding="utf-8")
        subprocess.run(
            (
                *(chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
                *(f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{HEIGHT}"),
                *(f"--force-device-scale-factor={SCALE}", f"--screenshot={shot}", page.as_uri()),
            ),
            check=True,
            timeout=120,
            capture_output=True,
        )
        with Image.open(shot) as picture:
            picture.convert("RGB").quantize(COLOURS).save(file, optimize=True)
    print(f"{file}: {file.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
