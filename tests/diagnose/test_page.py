"""The page in a real browser: everything drawn, nothing fetched, readable in both widths and both colour schemes."""

import contextlib
import json
import shutil
import tempfile
import time

import pytest
import torch
from torch import nn

import holdfast as hf
from helpers.faults import Tagger
from holdfast.diagnose import compare, diagnose

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def diagnoses():
    """A ReLU network with a template, partitions and one answer at the end; and a stack of two with a fault."""
    torch.manual_seed(0)
    relu = Tagger(hf.RNN(3, 12, nonlinearity="relu", init="np", backend="reference"), 12, outputs=2, last=True)
    healthy = diagnose(relu, torch.randn(20, 5, 3), torch.randn(5, 2))
    lstm = nn.LSTM(2, 8, num_layers=2)
    with torch.no_grad():
        lstm.bias_ih_l1[:8] = -9.0
    faulty = diagnose(lstm, torch.randn(20, 5, 2))
    assert [it.rule for it in faulty.findings] == ["saturated"]
    return healthy, faulty


def test_the_page_is_small_and_holds_no_address_to_fetch(diagnoses):
    """At most 8 MB; outside Plotly's own script there is no http address, and the policy forbids all requests."""
    from plotly.offline import get_plotlyjs

    from holdfast.diagnose import page

    text = page([diagnoses[0]])
    assert len(text.encode()) < 8e6
    assert "http" not in text.replace(get_plotlyjs(), "").replace("http-equiv", "")
    assert "default-src 'none'" in text


@contextlib.contextmanager
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="the browser test needs selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        try:
            yield driver
        finally:
            driver.quit()


def opened(driver, path, width, scheme):
    """The page at a width and in a colour scheme, drawn."""
    sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    driver.get(path.as_uri())
    drawn(driver, 1)


def drawn(driver, times):
    end = time.monotonic() + 60
    while int(driver.execute_script("return document.body.dataset.drawn || 0")) < times:
        assert time.monotonic() < end, driver.get_log("browser")
        time.sleep(0.05)


def chosen(driver, control, value):
    """Choose in a select as a person does, and wait until the pictures are drawn again."""
    before = int(driver.execute_script("return document.body.dataset.drawn"))
    program = """
        const select = document.getElementById(arguments[0]);
        select.value = arguments[1];
        select.dispatchEvent(new Event("change"));
    """
    driver.execute_script(program, control, value)
    drawn(driver, before + 1)


DRAWN = """
    return Array.from(document.querySelectorAll(".plot")).map((plot) => [
        plot.dataset.picture,
        plot.querySelectorAll(".scatterlayer .trace, .heatmaplayer image").length,
        plot.querySelector(".main-svg").getBoundingClientRect().width,
    ]);
"""
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
MAP = """
    const plot = document.querySelector('[data-picture^="gate-"]');
    return [plot.data[0].customdata.map((row) => row[0]), plot.data[0].z.flat()];
"""


@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed")
def test_the_page_in_a_real_browser(diagnoses, tmp_path):
    one, two = diagnoses[0].save(tmp_path / "one.html"), compare(*diagnoses).save(tmp_path / "two.html")
    with browser() as driver:
        driver.get("about:blank")
        driver.get_log("performance")  # what the browser does when it starts
        colours = {}
        for width, scheme in ((1400, "light"), (400, "dark")):
            opened(driver, one, width, scheme)
            pictures = driver.execute_script(DRAWN)
            assert [name for name, *_ in pictures] == [
                "reach", "lyapunov", "state-norm", "gradient-norm", "gate-candidate", "matrices", "jacobians", "points",
                "templates", "regions",
            ]  # fmt: skip
            assert all(traces > 0 and size > 200 for _, traces, size in pictures), pictures
            assert driver.execute_script(OVERFLOW) == 0  # nothing is wider than the window
            colours[scheme] = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert colours["light"] == "rgb(255, 255, 255)"
        assert colours["dark"] != colours["light"]

        # another sequence: its line is added, and its map replaces the mean
        units, before = driver.execute_script(MAP)
        chosen(driver, "sample", "2")
        lines = driver.execute_script(
            "return document.querySelector('[data-picture=\"state-norm\"]').data.map((trace) => trace.name)"
        )
        assert lines[-1] == f"sequence {diagnoses[0].samples[1]}"
        assert driver.execute_script(MAP)[1] != before

        # sorting: the same units in the order of the measure, largest first
        chosen(driver, "sample", "0")
        chosen(driver, "order", "effect")
        effect = diagnoses[0].rows[0].pictures["units"]["effect"]
        assert driver.execute_script(MAP)[0] == sorted(units, key=lambda unit: -effect[unit])
        assert sorted(driver.execute_script(MAP)[1]) == sorted(before)

        # hover shows numbers
        template = driver.execute_script(
            "return document.querySelector('[data-picture=\"reach\"]').data[0].hovertemplate"
        )
        assert "%{y" in template

        # long lines of code do not make the page wider than a small window
        opened(driver, two, 400, "light")
        assert driver.execute_script(OVERFLOW) == 0

        # two side by side: each picture twice, a layer can be chosen, what one has not is said
        opened(driver, two, 1400, "dark")
        names = [name for name, *_ in driver.execute_script(DRAWN)]
        assert names.count("reach") == 2
        assert driver.execute_script(OVERFLOW) == 0
        assert driver.execute_script("return document.querySelectorAll('.finding').length") == 1
        assert driver.execute_script("return document.getElementById('row').value") == "layer 2"  # where the fault is
        chosen(driver, "row", "layer 1")
        assert "This network has no such picture." in driver.page_source

        assert [entry for entry in driver.get_log("browser") if entry["level"] != "INFO"] == []
        sent = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        asked = {it["params"]["request"]["url"] for it in sent if it["method"] == "Network.requestWillBeSent"}
        assert {url for url in asked if not url.startswith("data:")} == {one.as_uri(), two.as_uri()}
