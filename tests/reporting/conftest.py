"""A browser for pages, where there is one."""

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
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (sepkit[dev])")
    with playwright.sync_playwright() as driver:
        profile = tmp_path_factory.mktemp("profile")
        context = driver.chromium.launch_persistent_context(
            profile, executable_path=chromium, headless=True, args=list(FLAGS)
        )
        yield context
        context.close()
