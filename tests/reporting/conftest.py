"""A browser where there is one, and the page that a test module is about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
    "--autoplay-policy=no-user-gesture-required",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser_flags() -> tuple[str, ...]:
    """Further flags of the browser, for a module to say."""
    return ()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, browser_flags: tuple[str, ...]) -> Iterator[Any]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (sepkit[dev])")
    with playwright.sync_playwright() as driver:
        profile = tmp_path_factory.mktemp("profile")
        context = driver.chromium.launch_persistent_context(
            profile, executable_path=chromium, headless=True, args=[*FLAGS, *browser_flags]
        )
        yield context
        context.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page at the module's `address`; afterwards nobody may have complained, or asked for anything elsewhere."""
    page = browser.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    yield page
    page.wait_for_timeout(100)
    assert complaints == []
    assert [url[:80] for url in requests if not url.startswith((address, "data:", f"blob:{address}"))] == []
    page.close()
