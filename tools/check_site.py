"""Look at the built site in Chromium, as a reader would: ``python tools/check_site.py`` after ``make docs``.

Checks: search finds SGORNN, no page writes an error to the console, every image loads, nothing comes from a network,
nothing is wider than a phone's screen, and text is readable on light and dark pages. Screenshots go to
build/screenshots. Needs selenium, chromium and chromedriver.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE, SHOTS = ROOT / "build" / "docs", ROOT / "build" / "screenshots"
PAGES = (
    *(
        "index",
        "start",
        "choose",
        "comparison",
        "guides",
        "theory",
        "errors",
        "results",
        "speed",
        "gallery/index",
        "gallery/09_digits",
    ),
    *("cells/index", "cells/sgornn", "cells/lstm", "api/index", "api/layers", "usage/layers", "differences"),
)
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
SIZES = {"desktop": (1280, 900), "phone": (400, 800)}

BROKEN = "return [...document.images].filter(it => it.complete && it.naturalWidth === 0).map(it => it.src)"
LOADED_FROM = "return performance.getEntriesByType('resource').map(it => it.name)"
ALL_LOADED = "return [...document.images].every(it => it.complete)"
TOO_WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
COLOURS = (
    "const of = it => getComputedStyle(document.querySelector(it));"
    "return [of('body').backgroundColor, of('article p, article').color]"
)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not of interest."""


def served() -> tuple[http.server.ThreadingHTTPServer, str]:
    """The site on a free port of this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


def browser(profile: str) -> Any:
    """Chromium, with its console recorded."""
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ModuleNotFoundError:
        raise SystemExit("selenium is not installed; run: pip install selenium") from None
    path = shutil.which("chromedriver")
    if path is None:
        raise SystemExit("chromedriver is not installed (Debian: apt install chromium-driver).")
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(path))


def contrast(first: str, second: str) -> float:
    """The contrast of two colours "rgb(r, g, b)", from 1 to 21, by WCAG 2.

    Example:
        >>> contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)")
        21.0
    """

    def light(colour: str) -> float:
        parts = [float(it) / 255 for it in colour.partition("(")[2].rstrip(")").split(",")[:3]]
        linear = [it / 12.92 if it <= 0.03928 else ((it + 0.055) / 1.055) ** 2.4 for it in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lower, higher = sorted((light(first), light(second)))
    return round((higher + 0.05) / (lower + 0.05), 2)


def check(driver: Any, home: str) -> list[str]:
    """What is wrong with the site."""
    from selenium.webdriver.support.ui import WebDriverWait

    wrong: list[str] = []
    for size, (width, height) in SIZES.items():
        for theme in ("light", "dark"):
            if size == "phone" and theme == "dark":
                continue
            # a window cannot be as narrow as a phone: the screen is emulated
            screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            for page in PAGES:
                if theme == "dark" and page not in ("index", "choose", "cells/lstm", "api/layers"):
                    continue
                driver.get(f"{home}/{page}.html")
                driver.execute_script(f"document.body.dataset.theme = '{theme}'")
                WebDriverWait(driver, 20).until(lambda it: it.execute_script(ALL_LOADED))
                where = f"{page}, {size}, {theme}"
                wrong += [f"{where}: no image at {it}" for it in driver.execute_script(BROKEN)]
                outside = [it for it in driver.execute_script(LOADED_FROM) if not it.startswith((home, "data:"))]
                wrong += [f"{where}: needs a network for {it}" for it in outside]
                wide = driver.execute_script(TOO_WIDE)
                if wide > 0:
                    wrong.append(f"{where}: {wide} pixels wider than the screen")
                back, text = driver.execute_script(COLOURS)
                if contrast(back, text) < 4.5:
                    wrong.append(f"{where}: text {text} on {back} has a contrast of {contrast(back, text)}")
                wrong += [f"{where}: {it['message']}" for it in driver.get_log("browser") if it["level"] == "SEVERE"]
                driver.save_screenshot(str(SHOTS / f"{page.replace('/', '-')}-{size}-{theme}.png"))
    return [*wrong, *_search(driver, home)]


def _search(driver: Any, home: str) -> list[str]:
    """Whether a search for SGORNN finds its entries."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(f"{home}/search.html?q=SGORNN")
    WebDriverWait(driver, 30).until(lambda it: it.find_elements(By.CSS_SELECTOR, "#search-results li a"))
    found = [it.get_attribute("href") for it in driver.find_elements(By.CSS_SELECTOR, "#search-results li a")]
    driver.save_screenshot(str(SHOTS / "search.png"))
    missing = [it for it in ("api/layers.html", "cells/sgornn.html") if not any(it in str(link) for link in found)]
    errors = [it["message"] for it in driver.get_log("browser") if it["level"] == "SEVERE"]
    return [f"search: {it} is not among {len(found)} results" for it in missing] + [f"search: {it}" for it in errors]


def main() -> int:
    if not (SITE / "index.html").is_file():
        print("build/docs is not there; run make docs first.", file=sys.stderr)
        return 1
    SHOTS.mkdir(parents=True, exist_ok=True)
    server, home = served()
    with tempfile.TemporaryDirectory() as profile:
        driver = browser(profile)
        try:
            wrong = check(driver, home)
        finally:
            driver.quit()
            server.shutdown()
    print("\n".join(wrong) or f"{len(PAGES)} pages: no error. Screenshots are in {SHOTS.relative_to(ROOT)}.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
