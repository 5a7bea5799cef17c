"""One table, as a console, Markdown and HTML show it."""

from sepkit.reporting.tables import Table, score_cell


def test_one_table_has_three_renderings() -> None:
    rows = [["a|b", 12, score_cell(3.14159, 2, [3.0, 3.5], strong=True)], ["<c>", None, score_cell(None, 2)]]
    table = Table(["run", "n", "score [dB]"], rows, "Scores & more")
    assert table.lines() == ["run   n  score [dB]", "a|b  12        3.14", "<c>   -           -"]
    rows = ["| a\\|b | 12 | **3.14** |", "| &lt;c&gt; | - | - |"]
    assert table.markdown().splitlines() == ["| run | n | score [dB] |", "| --- | ---: | ---: |", *rows]
    html = table.html()
    assert "<strong>3.14</strong><small>3.00 to 3.50</small>" in html and 'data-key="3.14159"' in html
    assert "Scores &amp; more" in html and "&lt;c&gt;</td>" in html and "<c>" not in html
    # A column with a number in it is numeric; a dash has no key, and sorts last.
    assert html.count('<th scope="col" aria-sort="none" class="number">') == 2
    assert '<td class="number">-</td>' in html
