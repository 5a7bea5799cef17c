"""The report in a browser: silent console, no request, sound that plays, tables that sort, figures that show."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sepkit.reporting.report import write_report

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def address(experiments: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report."""
    return write_report(experiments, tmp_path_factory.mktemp("browser") / "report.html").as_uri()


def test_every_sound_decodes_and_plays(page: Any) -> None:
    played = page.evaluate("""async () => {
        const results = [];
        for (const player of document.querySelectorAll("audio")) {
            await player.play();
            const late = performance.now() + 10000;
            while (player.currentTime === 0 && performance.now() < late) {
                await new Promise((resolve) => setTimeout(resolve, 5));
            }
            results.push([player.currentTime > 0, player.error === null, player.duration]);
            player.pause();
        }
        return results;
    }""")
    assert len(played) == 3 * (1 + 2 * 3)
    assert all(moved and sound and duration == pytest.approx(0.5) for moved, sound, duration in played), played


def test_one_sound_at_a_time_goes_on_in_place(page: Any) -> None:
    first, second, playing = page.evaluate("""async () => {
        const [one, other] = document.querySelectorAll(".example audio");
        one.loop = true;
        await one.play();
        await new Promise((resolve) => setTimeout(resolve, 250));
        await other.play();
        return [one.paused, other.currentTime > 0, !other.paused];
    }""")
    assert first and second and playing


def column(page: Any, table: Any, place: int) -> list[float]:
    keys = table.locator(f"tbody tr td:nth-child({place + 1})").evaluate_all("cells => cells.map(c => c.dataset.key)")
    return [float(key) for key in keys]


@pytest.mark.parametrize("way", ["click", "keyboard"])
def test_tables_sort(way: str, page: Any) -> None:
    page.locator("#mixtures summary").first.click()
    table = page.locator("#mixtures table").first
    heading = table.locator("th").nth(1)
    for expected in ("descending", "ascending", "descending"):
        if way == "click":
            heading.locator("button").click()
        else:
            heading.locator("button").focus()
            page.keyboard.press("Enter" if expected == "ascending" else "Space")
        assert heading.get_attribute("aria-sort") == expected
        values = column(page, table, 1)
        assert len(values) == 30 and values == sorted(values, reverse=expected == "descending")
    names = table.locator("th").nth(0)
    names.locator("button").click()
    assert (names.get_attribute("aria-sort"), heading.get_attribute("aria-sort")) == ("ascending", "none")
    first = table.locator("tbody tr td:first-child").evaluate_all("cells => cells.map(c => c.textContent)")
    assert first[:3] == ["mix0", "mix1", "mix2"]


def test_sorting_is_reached_by_tab(page: Any) -> None:
    page.locator("nav a").last.focus()
    page.keyboard.press("Tab")  # the table, which scrolls
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('th button')")


# Each size and each scheme: sizes decide where things are, schemes their colors.
@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_figures_show(size: str, scheme: str, page: Any, tmp_path: Path) -> None:
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page itself scrolls sideways"
    screenshot = np.asarray(Image.open(io.BytesIO(page.screenshot(path=tmp_path / "page.png", full_page=True))))
    assert (screenshot[-3, 3, :3].astype(int).mean() < 60) == (scheme == "dark")
    boxes = page.locator("figure > svg").evaluate_all(
        "all => all.map(svg => { const b = svg.getBoundingClientRect();"
        " return [b.left + scrollX, b.top + scrollY, b.width, b.height]; })"
    )
    assert len(boxes) > 20
    for left, top, wide, high in (map(int, box) for box in boxes):
        assert wide >= min(300, width * 0.7) and left >= 0 and left + wide <= width
        pixels = screenshot[top : top + high, left : left + wide, :3].astype(int)
        contrast = np.abs(pixels - pixels[0, -1]).max(axis=-1)
        assert (contrast > 60).mean() > 0.01, "a figure that is blank, or cannot be told from its background"
