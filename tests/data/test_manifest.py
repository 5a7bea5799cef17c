import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepkit import limits
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, read_manifest, write_manifest
from tests.complaint import complaint

SOURCES = [
    {"path": "wav/1272/0.flac", "speaker": "1272", "sex": "F", "start": 0, "gain": 0.83, "offset": 0},
    {"path": "/abs/3.flac", "speaker": "1462", "sex": "M", "start": 5, "gain": 1, "offset": 7},
]
NOISE = {"path": "noise/n1.wav", "start": 0, "gain": 0.2, "extend": None}
CONTRACT_LINE = {"id": "1272-0_1462-3", "sample_rate": 8000, "num_samples": 31234, "mode": "min", "mixture": None}
CONTRACT_LINE |= {"resampler": "soxr_hq", "corpus": "librimix", "task": "sep_clean", "sources": SOURCES, "noise": NOISE}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "m.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def changed(**fields: Any) -> dict[str, Any]:
    return CONTRACT_LINE | fields


def test_the_contracts_line_is_read_and_written_back_the_same(tmp_path: Path) -> None:
    manifest = read_manifest(written(tmp_path, CONTRACT_LINE))
    (entry,) = manifest
    assert entry.id == "1272-0_1462-3" and entry.noise == NoiseEntry("noise/n1.wav", gain=0.2)
    assert entry.sources[0] == SourceEntry("wav/1272/0.flac", "1272", "F", gain=0.83)
    assert entry.resolve(entry.sources[0].path) == tmp_path / "wav/1272/0.flac"
    assert entry.resolve(entry.sources[1].path) == Path("/abs/3.flac")
    assert manifest.max_sources == 2
    again = write_manifest(tmp_path / "again.jsonl", manifest)
    assert json.loads(again.read_text()) == CONTRACT_LINE
    assert list(json.loads(again.read_text())) == list(CONTRACT_LINE)


def test_absent_fields_have_defaults_and_unknown_ones_are_kept(tmp_path: Path) -> None:
    sources = [{"path": "a.wav", "take": 3}]
    line = {"id": "ü", "sample_rate": 8000, "num_samples": 5, "sources": sources, "room": {"x": [1]}}
    entry, second = read_manifest(written(tmp_path, "", line, " ", CONTRACT_LINE))
    assert second.id == CONTRACT_LINE["id"]
    assert (entry.mode, entry.mixture, entry.resampler, entry.noise) == ("min", None, "soxr_hq", None)
    assert entry.extra == {"room": {"x": [1]}} and entry.sources[0].extra == {"take": 3}
    back = json.loads(write_manifest(tmp_path / "b.jsonl", [entry]).read_text(encoding="utf-8"))
    assert back["room"] == {"x": [1]} and back["sources"][0]["take"] == 3 and back["id"] == "ü"


def test_a_mixture_without_references_is_allowed(tmp_path: Path) -> None:
    (entry,) = read_manifest(written(tmp_path, changed(sources=[], mixture="mix/a.wav")))
    assert entry.sources == [] and entry.mixture == "mix/a.wav"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", r"not JSON \(.*\); expected one JSON object per line"),
        ([1, 2], r"found \[1, 2\], expected a JSON object"),
        ({k: v for k, v in CONTRACT_LINE.items() if k != "num_samples"}, r"missing field 'num_samples'"),
        (changed(id="b", sample_rate="8000"), r"sample_rate is '8000', expected 1000 to 768000 Hz"),
        (changed(id="b", num_samples=0), r"num_samples is 0, expected a whole number above 0"),
        (changed(id=""), r"id is '', expected printable text of 1 to 200 bytes"),
        (changed(id="b", mode="avg"), r"mode is 'avg', expected one of min, max"),
        (changed(id="b", resampler="sox"), r"resampler is 'sox', expected one of soxr_hq, scipy_poly"),
        (changed(id="b", sources={}), r"sources is {}, expected a list"),
        (changed(id="b", sources=[{"speaker": "1"}]), r"sources\[0\]: missing field 'path'"),
        (changed(id="b", sources=[{"path": "x", "gain": "1"}]), r"sources\[0\]: gain is '1', expected a finite number"),
        (changed(id="b", sources=[{"path": "x", "gain": float("nan")}]), r"sources\[0\]: gain is nan"),
        (changed(id="b", sources=["x.wav"]), r"sources\[0\]: found 'x.wav', expected a JSON object"),
        (changed(id="b", noise={"path": 3}), r"noise: path is 3, expected text"),
        (changed(id="b", sources=[]), r"contains neither mixture nor sources"),
        ('{"id": ' + "[" * 100_000, r"not JSON"),
        ('{"id": "b", "num_samples": ' + "9" * 5000, r"not JSON"),
        (changed(id="b", num_samples=10**400), r"num_samples is 1000+\.\.\.0+, expected a whole number"),
        (changed(id="b" * 300), r"id is 'b+\.\.\.b+', expected printable text of 1 to 200 bytes"),
        (changed(id="\ud800"), r"id is '.ud800', expected printable text"),
        (changed(id="b", mixture="a\0.wav"), r"mixture is 'a.x00.wav', expected text"),
        (changed(id="b", sources=[{"path": "x", "gain": 10**400}]), r"sources\[0\]: gain is 1000"),
        (CONTRACT_LINE, r"id '1272-0_1462-3' appears in line 1 too"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_field(tmp_path: Path, line: Any, message: str) -> None:
    path = written(tmp_path, CONTRACT_LINE, line)
    assert re.match(f"{re.escape(str(path))}:2: {message}", complaint(lambda: read_manifest(path)))


@pytest.mark.parametrize(
    ("place", "name", "least", "most"),
    [
        (None, "sample_rate", 1000, 768_000),
        (None, "num_samples", 1, limits.MIXTURE_SAMPLES),
        *((place, "start", 0, limits.FILE_SAMPLES) for place in ("sources", "noise")),
        *(("sources", name, 0, limits.FILE_SAMPLES) for name in ("offset", "channel")),
        ("sources", "num_samples", 1, limits.FILE_SAMPLES),
        *((place, "gain", -limits.GAIN, limits.GAIN) for place in ("sources", "noise")),
    ],
)
def test_numbers_are_accepted_up_to_both_ends(tmp_path: Path, place: str | None, name: str, least: Any, most: Any):
    beyond = 1 if isinstance(least, int) else abs(least) * 1e-9
    for value, right in ((least, True), (most, True), (least - beyond, False), (most + beyond, False), (True, False)):
        part = {"path": "x", name: value}
        line = changed(**({name: value} if place is None else {place: [part] if place == "sources" else part}))
        if right:
            read_manifest(written(tmp_path, line))
        else:
            complaint(
                lambda line=line: read_manifest(written(tmp_path, line)), f"{name} is {re.escape(str(value))[:12]}"
            )


def test_manifests_that_are_absent_empty_or_not_text(tmp_path: Path) -> None:
    complaint(lambda: read_manifest(tmp_path / "absent.jsonl"), "no such file")
    complaint(lambda: read_manifest(written(tmp_path, "")), "contains no mixtures")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    complaint(lambda: read_manifest(tmp_path / "binary.jsonl"), "cannot be read")
    complaint(lambda: read_manifest(tmp_path), r"found a folder, expected a manifest .* `sepkit prepare mixed`")


def test_write_refuses_what_read_would(tmp_path: Path) -> None:
    entry = MixtureEntry("a", 8000, 10, [SourceEntry("x.wav")])
    complaint(lambda: write_manifest(tmp_path / "m.jsonl", [entry, entry]), "id 'a' appears twice")
    bad = MixtureEntry("b", 8000, -1, [SourceEntry("x.wav")])
    complaint(lambda: write_manifest(tmp_path / "m.jsonl", [bad]), "mixture 'b': num_samples is -1")
    assert list(tmp_path.iterdir()) == []


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
ids = texts.filter(str.isprintable)
numbers = st.floats(-1e6, 1e6, width=64)
whole, counts = st.integers(0, 2**40), st.none() | st.integers(1, 2**40)
places = {"start": whole, "offset": whole, "num_samples": counts, "channel": st.none() | st.integers(0, 8)}
sources = st.builds(SourceEntry, texts, texts, st.none() | st.sampled_from(["F", "M"]), gain=numbers, **places)
noises = st.builds(NoiseEntry, path=texts, start=st.integers(0, 99), gain=numbers, extend=st.none() | texts)
sizes = {"sample_rate": st.integers(1000, 768000), "num_samples": st.integers(1, 2**28)}
parts = {"sources": st.lists(sources, min_size=1, max_size=3), "noise": st.none() | noises}
ways = {"mode": st.sampled_from(["min", "max"]), "resampler": st.sampled_from(["soxr_hq", "scipy_poly"])}
origins = {"mixture": st.none() | texts, "corpus": st.just("") | texts}
mixtures = st.builds(MixtureEntry, ids, **sizes, **parts, **ways, **origins)


@given(st.lists(mixtures, min_size=1, max_size=4, unique_by=lambda entry: entry.id))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, entries: list[MixtureEntry]) -> None:
    path = tmp_path_factory.mktemp("manifest") / "m.jsonl"
    content = write_manifest(path, entries).read_bytes()
    manifest = read_manifest(path)
    assert list(manifest) == entries
    assert write_manifest(path, manifest).read_bytes() == content
