"""A real browser: Debian's Chromium, driven by Selenium.

Whoever has none is told loudly and skips; `WORKQUEUE_BROWSER=required` makes that a failure.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

WIDTHS = {"wide": 1280, "phone": 390}
SCHEMES = ("light", "dark")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--lang=en",
)


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser with a profile of its own."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        reason = "THE ADMIN WAS NOT LOOKED AT IN A BROWSER: there is none. apt-get install chromium chromium-driver"
        if os.environ.get("WORKQUEUE_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    profile = tempfile.mkdtemp(prefix="workqueue-browser-")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    browser.set_page_load_timeout(30)
    try:
        yield browser
    finally:
        browser.quit()
        shutil.rmtree(profile, ignore_errors=True)


def look(browser: webdriver.Chrome, scheme: str, width: str) -> None:
    """See pages in a colour scheme, at a width."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    size = {"width": WIDTHS[width], "height": 900, "deviceScaleFactor": 1, "mobile": width == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def photograph(browser: webdriver.Chrome, path: str) -> None:
    """The whole page as a picture."""
    boxes = "[document.documentElement, ...document.querySelectorAll('#container')]"
    tall = f"return Math.max(...{boxes}.map(box => box.scrollHeight))"
    height = browser.execute_script(tall)
    width = browser.execute_script("return window.innerWidth")
    size = {"width": width, "height": min(height, 6000), "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.save_screenshot(path)


def faults(browser: webdriver.Chrome) -> list[str]:
    """What axe-core finds that is serious or worse, within what is ours."""
    found: list[dict[str, Any]] = Axe().run(browser)["violations"]
    return [
        f"{fault['id']}: {fault['help']}: {[node['html'][:200] for node in fault['nodes']][:3]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


def complaints(browser: webdriver.Chrome) -> list[str]:
    """What the console says that is an error: violations of the policy, scripts that fail, what was not found."""
    return [
        entry["message"]
        for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
    ]


def overflow(browser: webdriver.Chrome) -> int:
    """By how many pixels the page is wider than the window."""
    wide = browser.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return int(wide)
