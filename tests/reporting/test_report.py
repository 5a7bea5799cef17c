"""The page holds every section, only what it was given, and nothing from outside."""

import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.evaluation.run_folder import load_evaluation
from sepkit.reporting.examples import choose_examples
from sepkit.reporting.report import write_report

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Identifiers, addresses, and whether all elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.identifiers: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.identifiers += [given["id"] or ""] if "id" in given else []
        self.addresses += [given[name] or "" for name in ("src", "href", "xlink:href") if name in given]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def single(experiments: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(experiments[:1], tmp_path_factory.mktemp("report") / "report.html").read_text()


@pytest.fixture(scope="module")
def both(experiments: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(experiments, tmp_path_factory.mktemp("report") / "report.html").read_text()


def test_page_is_sound_and_needs_nothing(both: str) -> None:
    page = Page(both)
    assert page.open == []
    assert len(page.identifiers) == len(set(page.identifiers))
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert {address[1:] for address in page.addresses if address.startswith("#")} <= set(page.identifiers)
    assert not re.search(r"url\((?!#)|@import|//cdn", both)


def test_sections(single: str, both: str) -> None:
    names = re.findall(r'<section id="([a-z]+)"', single)
    assert {"scores", "examples", "matching", "distributions", "groups", "training", "curves"} <= set(names)
    for text in ("Differences on the same mixtures", "What differs"):
        assert text in both and text not in single


def test_means_are_those_of_the_summary(experiments: list[Path], single: str) -> None:
    summary = load_evaluation(experiments[0] / "evaluation" / "noise").summary
    for score in summary["metrics"].values():
        assert f'data-key="{score["mean"]}"' in single
    assert f"<small>{summary['metrics']['si_sdri_db']['ci95'][0]:.2f} to" in single


def test_names_are_escaped(both: str) -> None:
    assert "second <b>" not in both and "second &lt;b&gt;" in both


def test_sound_is_what_was_mixed(experiments: list[Path], single: str) -> None:
    evaluation = load_evaluation(experiments[0] / "evaluation" / "noise")
    worst = evaluation.rows[int(np.argmin(evaluation.scores("si_sdri_db")))]["id"]
    sounds = re.findall(r'<audio [^>]*src="data:audio/(?:wav|flac);base64,([^"]+)"', single)
    assert len(sounds) == 3 * 5
    mixture, rate = soundfile.read(io.BytesIO(base64.b64decode(sounds[0])))
    wav = experiments[0].parent / "corpus" / "wav"
    sources = [soundfile.read(wav / name)[0] for name in (f"{worst}_0.wav", f"{worst}_1.WAV")]
    expected = 0.9 * sum(sources) / max(np.abs(s).max() for s in (*sources, sum(sources)))
    assert rate == 8000 and np.abs(mixture - expected).max() < 1e-4


def test_model_is_run_where_there_are_no_estimates(experiments: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(experiments[0] / "evaluation" / "noise", folder)
    summary = json.loads((folder / "summary.json").read_text()) | {"estimates": None, "model": "known:model"}
    (folder / "summary.json").write_text(json.dumps(summary))
    asked: list[str] = []

    def load(model: str):
        asked.append(model)
        return lambda mixture, rate: np.stack([mixture, mixture + 0.01, -mixture])

    text = write_report([folder], tmp_path / "report.html", load_separator=load).read_text()
    assert asked == ["known:model"]
    # Not the estimates that were evaluated: the page says so.
    assert text.count("have changed since") == 3
    text = write_report([folder], tmp_path / "report.html").read_text()
    assert text.count("found neither a folder of estimates nor a model") == 3


def test_what_is_gone_is_said(experiments: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(experiments[0] / "evaluation" / "noise", folder)
    (folder / "summary.json").write_text((folder / "summary.json").read_text().replace("test.jsonl", "gone.jsonl"))
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert "No example:" in page and "gone.jsonl" in page and "<audio" not in page


def test_choice_of_examples() -> None:
    scores = np.array([3.0, np.nan, 1.0, 5.0, 2.0, 4.0])
    assert choose_examples(scores, 1) == [("worst", 2), ("median", 0), ("best", 3)]
    assert [place for _, place in choose_examples(scores, 3)] == [2, 4, 0, 5, 3]
    assert choose_examples(scores, 0) == [] and choose_examples(np.full(2, np.nan), 1) == []
    for count in range(8):
        for kept in range(6):
            places = [place for _, place in choose_examples(scores[:kept], count)]
            assert len(set(places)) == len(places) and sorted(scores[places]) == list(scores[places])


def test_command(experiments: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "report.html"
    names = ["--names", "ours", "theirs"]
    assert main(["report", *map(str, experiments), "--out", str(out), "--examples", "0", *names]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1] == str(out)
    assert "Comparison: ours, theirs" in out.read_text() and "<audio" not in out.read_text()
    assert main(["report", str(experiments[0]), "--out", str(out), *names]) == 2
    assert main(["report", str(tmp_path / "absent"), "--out", str(out)]) == 2


def test_tracks_of_separated_recordings_can_be_heard(tmp_path: Path) -> None:
    """What `sepkit separate` wrote: the recording and each track; a file that is gone is said."""
    waves = {name: 0.5 * np.random.default_rng(k).uniform(-1, 1, 800) for k, name in enumerate(("a<b", "a<b_x"))}
    for name, wave in waves.items():
        audio.write(tmp_path / f"{name}.wav", wave.astype(np.float32), 8000, subtype="PCM_16")
    told = {"input": str(tmp_path / "gone.wav"), "estimates": ["a<b_x.wav", "../a<b.wav", "no.wav"]}
    (tmp_path / "a<b.json").write_text(json.dumps(told))
    (tmp_path / "other.json").write_text("[1]")
    html = write_report([tmp_path], tmp_path / "page.html").read_text()
    assert "a&lt;b_x.wav" in html and "a<b_x" not in html and html.count("<audio") == 1 and "gone.wav: no such" in html
    (source,) = re.findall(r'<audio[^>]*src="data:[^;]*;base64,([^"]*)"', html)
    heard, rate = soundfile.read(io.BytesIO(base64.b64decode(source)))
    assert rate == 8000
    np.testing.assert_allclose(heard, audio.read(tmp_path / "a<b_x.wav"), atol=1e-3)
