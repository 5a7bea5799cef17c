"""A browser where there is one, and the page that a test module is about."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
        context = driver.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=chromium, headless=True, args=[*FLAGS, *browser_flags]
        )
        yield context
        context.close()


@contextmanager
def watched(page: Any, address: str) -> Iterator[None]:
    """Nobody may complain meanwhile, or ask for anything elsewhere."""
    complaints: list[str] = []
    requests: list[str] = []
    listeners = {
        "console": lambda message: complaints.append(message.text),
        "pageerror": lambda error: complaints.append(str(error)),
        "request": lambda request: requests.append(request.url),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    yield
    page.wait_for_timeout(100)
    assert complaints == []
    assert [url[:80] for url in requests if not url.startswith((address, "data:", f"blob:{address}"))] == []
    for event, listener in listeners.items():
        page.remove_listener(event, listener)


def _opened(browser: Any, address: str) -> Iterator[Any]:
    """The page at the module's `address`, watched until it is closed."""
    page = browser.new_page()
    with watched(page, address):
        page.goto(address)
        yield page
    page.close()


page = pytest.fixture(_opened)
# One page for all tests of a module that leave it fit for the next.
opened_page = pytest.fixture(scope="module")(_opened)
