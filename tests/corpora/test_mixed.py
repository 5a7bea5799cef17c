import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sepkit.corpora.folder import prepare_folder as _prepare_folder
from sepkit.corpora.mixed import prepare_mixed as _prepare_mixed
from sepkit.corpora.options import FolderOptions, MixedOptions, WavsOptions
from sepkit.corpora.wavs import write_wavs as _write_wavs
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry, read_manifest, write_manifest
from sepkit.data.mixing import mix_entry
from tests.complaint import complaint
from tests.corpora.calling import by_place

write_wavs = by_place(_write_wavs, WavsOptions, "manifest", "out")
prepare_mixed = by_place(_prepare_mixed, MixedOptions, "mixture", "sources", "out", "noise")
prepare_folder = by_place(_prepare_folder, FolderOptions, "speech", "out", "noise")
RATE = 8000
SMALL = {"segment_seconds": 1.0, "train_mixtures": 4, "dev_mixtures": 2, "test_mixtures": 5}


@pytest.fixture
def wavs(speech, tmp_path, write_recording) -> Path:
    """Five test mixtures with noise, as mix/ s1/ s2/ noise/."""
    for split in ("train", "dev", "test"):
        write_recording(tmp_path / "noise" / split / "n.wav", 5, 2.0)
    out = prepare_folder(speech, tmp_path / "manifests", tmp_path / "noise", **SMALL)
    return write_wavs(out / "test.jsonl", tmp_path / "wavs")


def prepare(wavs: Path, out: Path) -> Path:
    return prepare_mixed(wavs / "mix", [wavs / "s1", wavs / "s2"], out, wavs / "noise")


def test_written_mixtures_are_read_back_bit_for_bit(wavs, tmp_path):
    described = read_manifest(tmp_path / "manifests" / "test.jsonl")
    recorded = read_manifest(prepare(wavs, tmp_path / "out"))
    assert [entry.id for entry in recorded] == [entry.id for entry in described]
    for one, other in zip(described, recorded, strict=True):
        mixed, read = mix_entry(one), mix_entry(other)
        np.testing.assert_array_equal(read.mixture, mixed.mixture)
        np.testing.assert_array_equal(read.sources, mixed.sources)
        assert other.noise is not None and other.task == "sep_noisy"


def test_files_without_partner_are_left_out_and_named(wavs, tmp_path, capsys):
    names = sorted(path.stem for path in (wavs / "mix").glob("*.wav"))
    (wavs / "s2" / f"{names[0]}.wav").unlink()
    audio.write(wavs / "s1" / "stray.wav", np.ones(9, np.float32), RATE)
    audio.write(wavs / "s1" / f"{names[1]}.wav", np.ones(9, np.float32), RATE)
    audio.write(wavs / "noise" / f"{names[2]}.wav", np.ones(RATE, np.float32), 2 * RATE)
    assert [entry.id for entry in read_manifest(prepare(wavs, tmp_path / "out"))] == names[3:]
    listed = (tmp_path / "out" / "skipped.tsv").read_text()
    assert re.search(rf"{names[0]}.wav: has no partner of that name in .*s2", listed)
    assert re.search(r"stray.wav: has no mixture of that name in .*mix", listed)
    assert re.search(rf"s1.{names[1]}.wav: 9 samples at 8000 Hz, but its mixture", listed)
    assert re.search(rf"noise.{names[2]}.wav: 8000 samples at 16000 Hz, but its mixture", listed)
    assert "warning: 4 item(s) left out" in capsys.readouterr().err


def test_folders_below_and_other_endings_are_paired(tmp_path):
    generator = np.random.default_rng(0)
    for name in ("tt/a b", "tt/c", "tt/d"):
        sources = 0.1 * generator.standard_normal((2, 500))
        audio.write(tmp_path / "mix" / f"{name}.wav", sources.sum(axis=0), RATE)
        for number, source in enumerate(sources, start=1):
            audio.write(tmp_path / f"s{number}" / f"{name}.flac", source, RATE, "PCM_16")
    rare = 0.1 * generator.standard_normal(2000)
    for folder in ("mix", "s1", "s2"):
        audio.write(tmp_path / folder / "rare.wav", rare, 4 * RATE)
    manifest = read_manifest(prepare_mixed(tmp_path / "mix", [tmp_path / "s1", tmp_path / "s2"], tmp_path))
    assert {entry.id: entry.num_samples for entry in manifest} == {
        "rare": 500, "tt/a b": 500, "tt/c": 500, "tt/d": 500,
    }  # fmt: skip
    assert {entry.sample_rate for entry in manifest} == {RATE}
    assert manifest[1].mixture == "mix/tt/a b.wav" and manifest[1].noise is None
    assert mix_entry(manifest[0]).sources.shape == (2, 500)


NAMES = ("a", "b_x", "tt/c")


def write_layout(folder: Path, mixture: str, source: str, noise: str | None = None) -> dict[str, np.ndarray]:
    """Three mixtures of two at paths made of patterns; returns their references."""
    references = {}
    for seed, name in enumerate(NAMES):
        parts = 0.1 * np.random.default_rng(seed).standard_normal((3, 400)).astype(np.float32)
        references[name] = parts[:2]
        paths = [source.format(number, id=name) for number in (1, 2)] + ([noise.format(id=name)] if noise else [])
        for path, part in zip(paths, parts, strict=False):
            audio.write(folder / path, part, RATE)
        audio.write(folder / mixture.format(id=name), parts[: len(paths)].sum(axis=0), RATE)
    return references


def check(manifest: Path, references: dict[str, np.ndarray], with_noise: bool = False) -> None:
    entries = read_manifest(manifest)
    assert sorted(entry.id for entry in entries) == sorted(references)
    for entry in entries:
        np.testing.assert_array_equal(mix_entry(entry).sources, references[entry.id])
        assert (entry.noise is not None) == with_noise


@pytest.mark.parametrize(
    ("mixture", "source", "noise", "pattern"),
    [
        ("mix/{id}.wav", "s{}/{id}.wav", "noise/{id}.wav", None),
        ("mix_both/{id}.wav", "s{}/{id}.wav", "noise/{id}.wav", None),
        ("{id}/mixture.wav", "{id}/source{}.wav", None, None),
        ("{id}_mix.wav", "{id}_s{}.wav", None, None),
        ("{id}-mix.wav", "{id}-spk{}.wav", "{id}-noise.wav", None),
        ("{id}_mix.wav", "{id}_s{}.wav", "{id}_noise.wav", ["{id}_mix.wav"]),
        ("all/{id}.both.wav", "one/{id}.{}.wav", None, ["all/{id}.both.wav", "one/{id}.1.wav", "one/{id}.2.wav"]),
    ],
)
def test_folders_are_found_by_themselves(mixture, source, noise, pattern, tmp_path):
    references = write_layout(tmp_path / "set", mixture, source, noise)
    options = MixedOptions(folder=tmp_path / "set", out=tmp_path / "out", pattern=pattern)
    check(_prepare_mixed(options), references, noise is not None)


def test_a_folder_without_partner_in_a_pattern(tmp_path):
    references = write_layout(tmp_path / "set", "{id}_mix.wav", "{id}_s{}.wav")
    (tmp_path / "set" / "a_s2.wav").unlink()
    audio.write(tmp_path / "set" / "stray_s1.wav", np.ones(9, np.float32), RATE)
    manifest = _prepare_mixed(MixedOptions(folder=tmp_path / "set", out=tmp_path / "out"))
    check(manifest, {name: references[name] for name in ("b_x", "tt/c")})
    listed = (tmp_path / "out" / "skipped.tsv").read_text()
    assert "a_mix.wav: has no partner" in listed and "stray_s1.wav: has no mixture of that name" in listed


@pytest.mark.parametrize(
    ("columns", "root"),
    [
        (["mixture_ID", "mixture_path", "source_1_path", "source_2_path", "noise_path", "length"], ""),
        (["mixture_ID", "mixture_path", "source_1_path", "source_2_path", "length"], "/"),
        (["ID", "mix_wav", "s1_wav", "s2_wav", "noise_wav", "mix_wav_format"], "$data_root/"),
    ],
    ids=["librimix", "absolute", "speechbrain"],
)
def test_tables(columns, root, tmp_path, capsys):
    references = write_layout(tmp_path, "wav/m/{id}.wav", "wav/{}/{id}.wav", "wav/n/{id}.wav")
    place = f"{tmp_path}/" if root == "/" else root
    places = [f"{place}wav/{part}" for part in ("m", "1", "2", "n")]
    rows = [[name, *(f"{folder}/{name}.wav" for folder in places), "400"] for name in (*NAMES, "absent")]
    has_noise = any("noise" in column for column in columns)
    rows = [row if has_noise else [*row[:4], row[5]] for row in rows]
    text = "\n".join(",".join(row) for row in [columns, *rows, [""] * len(columns)])
    (tmp_path / "test.csv").write_text(text + "\n")
    check(_prepare_mixed(MixedOptions(folder=tmp_path / "test.csv", out=tmp_path / "out")), references, has_noise)
    listed = (tmp_path / "out" / "skipped.tsv").read_text()
    assert "absent.wav: no such file" in listed and "test.csv:6: a cell of a path is empty" in listed
    assert "2 item(s) left out" in capsys.readouterr().err


def test_kaldi_folders(tmp_path):
    references = write_layout(tmp_path, "m/{id}.wav", "{}/{id}.wav")
    for name, part in (("wav", "m"), ("spk1", "1"), ("spk2", "2")):
        lines = [f"{key} {tmp_path}/{part}/{key}.wav" for key in NAMES]
        (tmp_path / f"{name}.scp").write_text("\n".join([*lines, *(["more x.wav"] if name == "wav" else [])]))
    check(_prepare_mixed(MixedOptions(folder=tmp_path, out=tmp_path / "out")), references)
    assert "more has no line in" in (tmp_path / "out" / "skipped.tsv").read_text()


def test_layouts_that_cannot_be_told(tmp_path):
    write_layout(tmp_path / "two", "mix_clean/{id}.wav", "s{}/{id}.wav")
    write_layout(tmp_path / "two", "mix_both/{id}.wav", "s{}/{id}.wav")
    write_layout(tmp_path / "none", "x/{id}.wav", "y{}/{id}.wav")
    (tmp_path / "odd.csv").write_text("path,speaker\na.wav,b\n")
    (tmp_path / "self.csv").write_text("mix,s1\nnone/x/a.wav,none/x/a.wav\n")
    (tmp_path / "kaldi").mkdir()
    (tmp_path / "kaldi" / "wav.scp").write_text("a a.wav\n")
    for options, message in [
        ({"folder": "two"}, "could be mix_both/{id} or mix_clean/{id}; choose with --pattern 'mix_both/{id}'"),
        ({"folder": "none"}, "found no mixtures with references; expected mix/ s1/ s2/"),
        ({"folder": "none", "pattern": ["x.wav"]}, "--pattern x: expected {id} in each"),
        ({"folder": "none", "pattern": ["x/{id}.wav"]}, "--pattern x/{id}: found no references"),
        ({"folder": "none", "pattern": ["q/{id}", "y1/{id}"]}, "no file fits the pattern q/{id}"),
        ({"folder": "odd.csv"}, "columns path, speaker; expected those of LibriMix"),
        ({"folder": "self.csv"}, "is the mixture and a reference of itself"),
        ({"folder": "kaldi"}, "no spk1.scp"),
        ({"folder": "two", "mixture": "two"}, "--mixture: expected without"),
        ({"folder": "two", "sources": ["two"]}, "expected with --mixture"),
        ({}, "FOLDER: found nothing, expected a folder"),
    ]:
        places = {name: tmp_path / value for name, value in options.items() if name in ("folder", "mixture")}
        wrong = MixedOptions(**(options | places), out=tmp_path / "out")
        complaint(partial(_prepare_mixed, wrong), re.escape(message))
    chosen = MixedOptions(folder=tmp_path / "two", pattern=["mix_clean/{id}"], out=tmp_path / "out")
    assert len(read_manifest(_prepare_mixed(chosen))) == 3


def test_what_cannot_be_prepared(wavs, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    audio.write(tmp_path / "other" / "x.wav", np.ones(9, np.float32), RATE)
    audio.write(tmp_path / "twice" / "x.wav", np.ones(9, np.float32), RATE)
    audio.write(tmp_path / "twice" / "x.flac", np.ones(9, np.float32), RATE, "PCM_16")
    for mixture, sources, out, message in [
        (wavs / "nowhere", [wavs / "s1"], tmp_path / "out", "nowhere: no such folder"),
        (wavs / "mix", [tmp_path / "empty"], tmp_path / "out", "empty: no audio files"),
        (wavs / "mix", [], tmp_path / "out", "--sources"),
        (wavs / "mix", [wavs / "s1", wavs / "s1"], tmp_path / "out", "s1: the same folder as .*s1"),
        (wavs / "mix", [wavs / "s1", wavs / "s2" / ".." / "mix"], tmp_path / "out", "mix: the same folder as .*mix"),
        (wavs / "mix", [tmp_path / "other"], tmp_path / "out", "none of its mixtures can be used: .*no partner"),
        (tmp_path / "twice", [wavs / "s1"], tmp_path / "out", "same name"),
        (wavs / "mix", [wavs / "s1"], tmp_path / "file" / "out", "cannot be written"),
    ]:
        complaint(partial(prepare_mixed, mixture, sources, out), message)


def test_wavs_that_are_there_are_kept(wavs, tmp_path):
    manifest = tmp_path / "manifests" / "test.jsonl"
    paths = sorted(wavs.rglob("*.wav"))
    before = {path: path.stat().st_mtime_ns for path in paths}
    paths[0].unlink()
    write_wavs(manifest, wavs)
    kept = [path for path in paths if path.stat().st_mtime_ns == before[path]]
    assert len(kept) == len(paths) - 4  # the four files of one mixture are made again


def test_first(wavs, tmp_path):
    out = write_wavs(tmp_path / "manifests" / "test.jsonl", tmp_path / "few", first=2)
    assert len(list((out / "mix").iterdir())) == 2
    complaint(lambda: write_wavs(tmp_path / "manifests" / "test.jsonl", tmp_path / "none", first=0), "first: found 0")


def test_an_id_does_not_lead_out_of_the_folder(wavs, tmp_path):
    source = SourceEntry(str(next((wavs / "s1").iterdir())))
    manifest = write_manifest(tmp_path / "evil.jsonl", [MixtureEntry("../../evil", RATE, 10, [source])])
    complaint(lambda: write_wavs(manifest, tmp_path / "a" / "b"), "leads out")
