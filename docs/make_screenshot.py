"""The README's picture: a report on a wide screen and, dark, on a phone. Needs a browser: apt-get install chromium.

python docs/make_screenshot.py [RUN]
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from balcal import registry
from balcal.report import write_report
from balcal.training.fit import train_recipe

HERE = Path(__file__).parent
HEIGHT, PHONE, WIDE, GAP = 1180, 400, 1100, 36


def main() -> None:
    run = Path(sys.argv[1]) if len(sys.argv) > 1 else trained()
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with TemporaryDirectory() as folder, sync_playwright() as started:
        page = Path(folder) / "report.html"
        write_report(run, page)
        opened = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        wide, phone = shot(opened, page, WIDE, "light"), shot(opened, page, PHONE, "dark")
        opened.close()
    both = Image.new("RGB", (WIDE + PHONE + 3 * GAP, HEIGHT + 2 * GAP), "#e9e6df")
    both.paste(wide, (GAP, GAP))
    both.paste(phone, (WIDE + 2 * GAP, GAP))
    path = HERE / "report.png"
    both.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def trained() -> Path:
    figures = train_recipe(registry.recipe("fashion", "balcal-auto", 0), "runs")
    assert figures is not None
    return Path(figures["run"])


def shot(browser: Browser, page: Path, width: int, scheme: str) -> Image.Image:
    context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)  # type: ignore[arg-type]
    seen = context.new_page()
    seen.goto(page.resolve().as_uri())
    return Image.open(io.BytesIO(seen.screenshot()))


if __name__ == "__main__":
    main()
