"""Pieces of a self-contained HTML page: sections, figures, sound. Everything given as text is escaped."""

import base64
import io
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from sepkit.cleaning import plain
from sepkit.data import audio
from sepkit.reporting.figures import with_palette

# The page may load nothing: the browser refuses any outside address that slips in by mistake.
_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def document(title: str, navigation: Sequence[tuple[str, str]], body: str) -> str:
    """Return a whole page.

    Args:
        title: Title of the page.
        navigation: Identifier and text of each link at the top.
        body: HTML of the page.
    """
    assets = resources.files("sepkit.reporting") / "assets"
    template, style, script = ((assets / f"report.{end}").read_text(encoding="utf-8") for end in ("html", "css", "js"))
    links = "".join(f'<a href="#{name}">{escape(text)}</a>' for name, text in navigation)
    parts = {"policy": _POLICY, "title": escape(title), "style": style, "links": links, "body": body, "script": script}
    return plain(Template(template).substitute(parts))


def section(name: str, title: str, *content: str) -> str:
    """Return a section with a heading, as HTML."""
    return f'<section id="{name}">\n<h2>{escape(title)}</h2>\n' + "\n".join(content) + "\n</section>"


def details(title: str, content: str) -> str:
    """Return content that unfolds, as HTML."""
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"


def figure_html(figure: Figure, name: str, description: str, caption: str = "") -> str:
    """Return a figure as inline SVG in the page's own font and text color, legible in light and dark.

    Args:
        figure: its black parts take the color of text.
        name: prefix of its identifiers, unique in the page.
        description: Text alternative of the image.
        caption: HTML below it.
    """
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert box is not None
    svg = svg[svg.index(">") + 1 :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{name}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(fill|stroke): #000000", r"\1: currentColor", svg)
    svg = re.sub(r'data:image/png;base64,\s*([^"]+)', lambda found: _smaller_png(found[1]), svg)
    svg = re.sub(r' (d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
    width, height = box.groups()
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure><svg role="img" aria-label="{escape(description)}" viewBox="0 0 {width} {height}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">{svg.strip()}{below}</figure>'
    )


def player(waveform: np.ndarray, sample_rate: int, label: str) -> str:
    """Return a player that holds its sound, as HTML.

    Args:
        waveform: (T,), full scale 1.0.
        sample_rate: Hz.
        label: serves those who do not see its place.
    """
    sound, kind = audio.encode_sound(waveform, sample_rate)
    source = f"data:{kind};base64,{base64.b64encode(sound).decode()}"
    return f'<audio controls preload="metadata" aria-label="{escape(label)}" src="{source}"></audio>'


def slug(text: str) -> str:
    """Return a text as part of an identifier."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def _smaller_png(encoded: str) -> str:
    """Return the data address of the same picture with a palette."""
    smaller = with_palette(io.BytesIO(base64.b64decode(encoded)))
    return f"data:image/png;base64,{base64.b64encode(smaller).decode()}"
