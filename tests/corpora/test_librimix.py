import csv
import errno
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from scipy.signal import resample_poly

from sepkit.corpora.librimix import prepare_librimix as _prepare_librimix
from sepkit.corpora.options import LibriMixOptions
from sepkit.data import audio
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from tests.complaint import complaint
from tests.corpora.calling import by_place, check_mistakes, table

prepare_librimix = by_place(_prepare_librimix, LibriMixOptions, "librispeech", "wham_noise", "metadata", "out")
RATE = 16000
KINDS = ("mix_clean", "mix_both", "mix_single")
PARTS = {"train-clean-100": ("tr", "abcd"), "dev-clean": ("cv", "efg"), "test-clean": ("tt", "hij")}


def speech(generator: np.random.Generator, num_samples: int) -> np.ndarray:
    """Noise that swells and fades like syllables, with digital silence in between."""
    envelope = np.clip(np.sin(np.arange(num_samples) / RATE * 2 * np.pi * 3 + generator.uniform(0, 6)), 0, None)
    return 0.2 * envelope * generator.standard_normal(num_samples)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """LibriSpeech/, wham_noise/ and metadata/ of two and three speakers, four mixtures a part."""
    root = tmp_path_factory.mktemp("corpus")
    generator = np.random.default_rng(0)
    for speakers in (2, 3):
        for part, (noise_folder, names) in PARTS.items():
            rows = []
            for number in range(4):
                row: list[object] = []
                identifiers = []
                for index in range(speakers):
                    speaker = names[(number + index) % len(names)]
                    stem = f"{speaker}-7-{speakers}{number}{index}"
                    path = Path(part, speaker, "7", f"{stem}.flac")
                    (root / "LibriSpeech" / path).parent.mkdir(parents=True, exist_ok=True)
                    # Odd lengths show whether cutting comes before or after resampling.
                    waveform = speech(generator, int(generator.integers(15000, 30000)))
                    soundfile.write(root / "LibriSpeech" / path, waveform, RATE)
                    row += [path.as_posix(), float(generator.uniform(0.3, 2.5))]
                    identifiers.append(stem)
                # The first is far shorter than any utterance, the second a little, the others long enough.
                length = (8500, 14999, 40000, 31001)[number]
                noise = Path(noise_folder, f"{speakers}n{number}_0.5_-0.5.wav")
                (root / "wham_noise" / noise).parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(root / "wham_noise" / noise, 0.05 * generator.standard_normal((length, 2)), RATE)
                rows.append(["_".join(identifiers), *row, noise.as_posix(), float(generator.uniform(0.3, 2.5))])
            columns = [f"source_{i}_{what}" for i in range(1, speakers + 1) for what in ("path", "gain")]
            table = root / "metadata" / f"libri{speakers}mix_{part}.csv"
            table.parent.mkdir(exist_ok=True)
            with open(table, "w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["mixture_ID", *columns, "noise_path", "noise_gain"])
                writer.writerows(rows)
            (root / "metadata" / f"libri{speakers}mix_{part}_info.txt").write_text("not a table")
    return root


def prepare(corpus: Path, out: Path, **options) -> Path:
    folders = (corpus / name for name in ("LibriSpeech", "wham_noise", "metadata"))
    return prepare_librimix(*folders, out, **{"processes": 1, **options})


def extended(noise: np.ndarray, num_samples: int) -> np.ndarray:
    """Repeats, half a second of the end fading into half a second of the beginning."""
    fade_in = np.array([0.5 - 0.5 * np.cos(np.pi * i / 8000) for i in range(8001)])
    result = noise.astype(np.float64)
    while len(result) < num_samples:
        seam = result[-8001:] * fade_in[::-1] + noise[:8001] * fade_in
        result = np.concatenate([result[:-8001], seam, noise[8001:]])
    return result[:num_samples]


def expected(corpus: Path, row: list[str], speakers: int, rate: int, mode: str) -> dict[str, np.ndarray]:
    """The waveforms of a line of the metadata, before they are rounded to 16 bits."""
    *cells, noise_path, noise_gain = row[1:]
    waveforms = [soundfile.read(corpus / "LibriSpeech" / path, dtype="float32")[0] for path in cells[::2]]
    longest = max(len(w) for w in waveforms)
    noise = soundfile.read(corpus / "wham_noise" / noise_path, dtype="float32")[0][:longest, 0]
    if len(noise) < longest:
        noise = extended(noise, longest)
    gains = [float(gain) for gain in cells[1::2]]
    scaled = [w * g for w, g in zip([*waveforms, noise], [*gains, float(noise_gain)], strict=True)]
    parts = [resample_poly(waveform, rate, RATE) for waveform in scaled]
    if mode == "min":
        parts = [part[: min(map(len, parts))] for part in parts]
    else:
        parts = [np.concatenate([part, np.zeros(max(map(len, parts)) - len(part), part.dtype)]) for part in parts]
    sources, noise = parts[:speakers], parts[speakers]
    result = {f"s{i}": source for i, source in enumerate(sources, start=1)} | {"noise": noise}
    for kind, mixed in zip(KINDS, ([*sources], [*sources, noise], [sources[0], noise]), strict=True):
        result[kind] = np.zeros(len(noise), np.float32)
        for part in mixed:
            result[kind] = (result[kind] + part).astype(np.float32)
    return result


def pcm16(waveform: np.ndarray, folder: Path) -> np.ndarray:
    """As python-soundfile writes it."""
    soundfile.write(folder / "pcm16.wav", waveform, 8000)
    return soundfile.read(folder / "pcm16.wav", dtype="int16")[0]


VARIANTS = [(n, rate, mode) for n in (2, 3) for rate in (8000, 16000) for mode in ("min", "max")]


@pytest.mark.parametrize(("speakers", "rate", "mode"), VARIANTS)
def test_the_written_tree_is_the_official_one_sample_for_sample(corpus, tmp_path, speakers, rate, mode):
    out = prepare(corpus, tmp_path / "out", speakers=speakers, sample_rate=rate, mode=mode, write=True)
    root = out / f"Libri{speakers}Mix" / f"wav{rate // 1000}k" / mode
    folders = [*(f"s{i}" for i in range(1, speakers + 1)), "noise", *KINDS]
    names = set()
    for part in PARTS:
        rows = table(corpus / "metadata" / f"libri{speakers}mix_{part}.csv")[1:]
        part = part.replace("-clean", "")
        unrounded = {row[0]: expected(corpus, row, speakers, rate, mode) for row in rows}
        for row in rows:
            for folder, waveform in unrounded[row[0]].items():
                written, written_rate = soundfile.read(root / part / folder / f"{row[0]}.wav", dtype="int16")
                np.testing.assert_array_equal(written, pcm16(waveform, tmp_path), f"{part} {folder} {row[0]}")
                assert written_rate == rate
        names |= {f"{part}/{folder}/{row[0]}.wav" for folder in folders for row in rows}
        check_tables(root, part, unrounded)
    assert {path.relative_to(root).as_posix() for path in root.rglob("*.wav")} == names
    assert not list(out.rglob("*.tmp*")) and not (out / "skipped.tsv").exists()


def check_tables(root: Path, part: str, unrounded: dict[str, dict[str, np.ndarray]]) -> None:
    speakers = len(next(iter(unrounded.values()))) - 4
    sources = [f"source_{i}" for i in range(1, speakers + 1)]
    for kind, parts in zip(KINDS, (sources, [*sources, "noise"], ["source_1", "noise"]), strict=True):
        mixtures, metrics = (table(root / "metadata" / f"{what}_{part}_{kind}.csv") for what in ("mixture", "metrics"))
        assert mixtures[0] == ["mixture_ID", "mixture_path", *(f"{name}_path" for name in parts), "length"]
        assert metrics[0] == ["mixture_ID", *(f"{name}_SNR" for name in parts)]
        assert [line[0] for line in mixtures[1:]] == [line[0] for line in metrics[1:]] == list(unrounded)
        for line, ratios in zip(mixtures[1:], metrics[1:], strict=True):
            folders = [kind, *(name.replace("source_", "s") for name in parts)]
            assert line[1:-1] == [str(root.absolute() / part / folder / f"{line[0]}.wav") for folder in folders]
            waveforms = [unrounded[line[0]][folder].astype(np.float64) for folder in folders]
            assert {len(waveform) for waveform in waveforms} == {int(line[-1])}
            for waveform, ratio in zip(waveforms[1:], ratios[1:], strict=True):
                rest = waveforms[0] - waveform
                assert float(ratio) == pytest.approx(10 * np.log10(np.mean(waveform**2) / np.mean(rest**2)), abs=1e-4)


@pytest.mark.parametrize(("speakers", "rate", "mode"), VARIANTS)
def test_mixtures_on_the_fly_are_what_is_written_before_it_is_rounded(corpus, tmp_path, speakers, rate, mode):
    out = prepare(corpus, tmp_path / "out", speakers=speakers, sample_rate=rate, mode=mode)
    assert not list(out.rglob("*.wav"))
    generator = np.random.default_rng(1)
    for part in PARTS:
        rows = table(corpus / "metadata" / f"libri{speakers}mix_{part}.csv")[1:]
        unrounded = [expected(corpus, row, speakers, rate, mode) for row in rows]
        tasks = ("sep_clean", "sep_noisy", "enh_single")
        for kind, suffix, task in zip(KINDS, ("", "_noisy", "_single"), tasks, strict=True):
            entries = read_manifest(out / f"{part.split('-')[0]}{suffix}.jsonl")
            assert [entry.id for entry in entries] == [row[0] for row in rows]
            for entry, waveforms in zip(entries, unrounded, strict=True):
                mixed = mix_entry(entry)
                assert (entry.task, entry.mode, entry.sample_rate, entry.mixture) == (task, mode, rate, None)
                assert entry.num_samples == len(waveforms[kind])
                np.testing.assert_array_equal(mixed.mixture, waveforms[kind])
                for index, source in enumerate(mixed.sources, start=1):
                    np.testing.assert_array_equal(source, waveforms[f"s{index}"])
                assert len(mixed.sources) == (1 if kind == "mix_single" else speakers)
                assert (mixed.noise is None) == (kind == "mix_clean")
                speakers_of = [name[0] for name in entry.id.split("_")]
                assert [s.speaker for s in entry.sources] == speakers_of[: len(mixed.sources)]
                start = int(generator.integers(entry.num_samples - 500))
                crop = mix_entry(entry, start, 500)
                np.testing.assert_array_equal(crop.mixture, waveforms[kind][start : start + 500])
                written = pcm16(waveforms[kind], tmp_path) / 32768
                assert np.abs(np.clip(mixed.mixture, -1, 1) - written).max() <= 1 / 32768


def test_manifests_of_the_written_tree_read_it_and_can_be_moved(corpus, tmp_path):
    moved = prepare(corpus, tmp_path / "out", write=True).rename(tmp_path / "moved")
    rows = table(corpus / "metadata" / "libri2mix_dev-clean.csv")[1:]
    for kind, suffix in zip(KINDS, ("", "_noisy", "_single"), strict=True):
        for entry, row in zip(read_manifest(moved / f"dev{suffix}.jsonl"), rows, strict=True):
            waveforms = expected(corpus, row, 2, 8000, "min")
            mixed = mix_entry(entry)
            np.testing.assert_array_equal(mixed.mixture, pcm16(waveforms[kind], tmp_path) / np.float32(32768))
            np.testing.assert_array_equal(mixed.sources[0], pcm16(waveforms["s1"], tmp_path) / np.float32(32768))
            assert (entry.noise is None) == (kind == "mix_clean")
            assert [s.speaker for s in entry.sources] == [n[0] for n in row[0].split("_")][: len(entry.sources)]


def test_written_and_described_have_equal_checksums_and_speakers_are_disjoint(corpus, tmp_path):
    reports = []
    for name, write in (("described", False), ("written", True)):
        out = prepare(corpus, tmp_path / name, write=write)
        reports.append(json.loads((out / "verification.json").read_text()))
    sums = [[list(part["sha256"].values()) for part in report["splits"].values()] for report in reports]
    assert sums[0] == sums[1]
    assert reports[0]["problems"] == reports[1]["problems"] == []
    assert {name: part["mixtures"] for name, part in reports[0]["splits"].items()} == {
        "train-100": 4, "dev": 4, "test": 4,
    }  # fmt: skip
    assert all(len(part["sha256"]) == 4 for part in reports[0]["splits"].values())


def test_sexes_come_from_speakers_txt(copy, tmp_path):
    table = "; a comment\ne | F | dev-clean | 8.0 | E | x\nf | M | dev-clean |\n"
    (copy / "LibriSpeech" / "SPEAKERS.TXT").write_text(table)
    first = read_manifest(prepare(copy, tmp_path / "out") / "dev.jsonl")[0].sources
    assert [(source.speaker, source.sex) for source in first] == [("e", "F"), ("f", "M")]


def test_both_training_parts_have_manifests_of_their_own_and_one_together(copy, tmp_path):
    rows = table(copy / "metadata" / "libri2mix_train-clean-100.csv")
    with open(copy / "metadata" / "libri2mix_train-clean-360.csv", "w", newline="") as file:
        csv.writer(file).writerows([rows[0], *([f"{row[0]}-again", *row[1:]] for row in rows[1:])])
    (copy / "metadata" / "libri2mix_dev-clean.csv").unlink()
    out = prepare(copy, tmp_path / "out")
    ids = {name: [e.id for e in read_manifest(out / f"{name}.jsonl")] for name in ("train", "train-100", "train-360")}
    assert ids["train"] == ids["train-100"] + ids["train-360"]
    assert not (out / "dev.jsonl").exists() and (out / "test_single.jsonl").exists()


def written_times(root: Path) -> dict[str, int]:
    return {path.relative_to(root).as_posix(): path.stat().st_mtime_ns for path in sorted(root.rglob("*.wav"))}


def test_the_same_command_again_writes_only_what_is_missing_or_damaged(copy, tmp_path):
    out = prepare(copy, tmp_path / "out", write=True)
    root = out / "Libri2Mix" / "wav8k" / "min"
    before, tables = written_times(root), {path.name: path.read_bytes() for path in root.glob("metadata/*.csv")}
    contents = {path: path.read_bytes() for path in root.rglob("*.wav")}
    prepare(copy, out, write=True)
    assert written_times(root) == before
    names = [row[0] for row in table(copy / "metadata" / "libri2mix_dev-clean.csv")[1:]]
    (root / "dev" / "s2" / f"{names[0]}.wav").unlink()
    cut = root / "dev" / "noise" / f"{names[2]}.wav"
    cut.write_bytes(cut.read_bytes()[:-100])
    journal = root / "metadata" / ".test.journal.jsonl"
    journal.write_text(journal.read_text()[:-20])  # a run that was killed while it wrote the last line
    prepare(copy, out, write=True)
    assert {path: path.read_bytes() for path in root.rglob("*.wav")} == contents
    assert {path.name: path.read_bytes() for path in root.glob("metadata/*.csv")} == tables
    after = written_times(root)
    changed = {name for name in after if after[name] != before[name]}
    killed = table(copy / "metadata" / "libri2mix_test-clean.csv")[4][0]
    assert {Path(name).stem for name in changed} == {names[0], names[2], killed}


def test_mixtures_whose_line_in_the_table_changed_are_written_again(copy, tmp_path):
    out = prepare(copy, tmp_path / "out", write=True)
    path = copy / "metadata" / "libri2mix_dev-clean.csv"
    lines = path.read_text().splitlines()
    cells = lines[2].split(",")
    cells[2] = "0.123"
    path.write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:]]) + "\n")
    prepare(copy, out, write=True)
    waveform = expected(copy, cells, 2, 8000, "min")["mix_both"]
    written = soundfile.read(out / f"Libri2Mix/wav8k/min/dev/mix_both/{cells[0]}.wav", dtype="int16")[0]
    np.testing.assert_array_equal(written, pcm16(waveform, tmp_path))


@pytest.mark.parametrize("write", [False, True])
def test_bad_recordings_are_listed_and_the_rest_goes_on(copy, tmp_path, capsys, write):
    rows = table(copy / "metadata" / "libri2mix_train-clean-100.csv")[1:]
    shutil.rmtree(copy / "LibriSpeech" / Path(rows[0][1]).parent)  # a speaker's folder
    missing = {row[0] for row in rows if not all((copy / "LibriSpeech" / path).exists() for path in row[1:-2:2])}
    dev = table(copy / "metadata" / "libri2mix_dev-clean.csv")[1:]
    flac = copy / "LibriSpeech" / dev[0][1]
    flac.write_bytes(flac.read_bytes()[: flac.stat().st_size // 2])
    noise = copy / "wham_noise" / dev[1][5]
    noise.write_bytes(noise.read_bytes()[:-4000])
    soundfile.write(copy / "wham_noise" / dev[2][5], np.ones((7000, 2)) / 9, RATE)
    soundfile.write(copy / "LibriSpeech" / dev[3][3], np.ones(9000) / 9, 8000)
    out = prepare(copy, tmp_path / "out", write=write)
    listed = dict(line.split("\t") for line in (out / "skipped.tsv").read_text().splitlines())
    assert {name.split("/")[1] for name in listed if name.startswith("train-100/")} == missing
    assert all("no such file" in reason for name, reason in listed.items() if name.startswith("train"))
    reasons = (f"{flac}: damaged or truncated", f"{noise}: truncated", "7000 samples", "8000 Hz")
    for row, reason in zip(dev, reasons, strict=True):
        assert reason in listed[f"dev/{row[0]}"]
    assert f"warning: {len(missing) + 4} item(s) left out" in capsys.readouterr().err
    assert len(read_manifest(out / "train.jsonl")) == 4 - len(missing)
    assert not (out / "dev.jsonl").exists()
    assert len(read_manifest(out / "test.jsonl")) == 4
    if write:
        kept = {path.stem for path in (out / "Libri2Mix/wav8k/min/train-100").rglob("*.wav")}
        assert kept == {row[0] for row in rows} - missing
        assert len(table(out / "Libri2Mix/wav8k/min/metadata/mixture_train-100_mix_both.csv")) == 1 + len(kept)


def test_bad_lines_are_listed_and_the_rest_goes_on(copy, tmp_path):
    path = copy / "metadata" / "libri2mix_dev-clean.csv"
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace(lines[2].split(",")[2], "loud")
    lines[3] = lines[3].replace(lines[3].split(",")[0], "../../evil")
    path.write_text("\n".join([*lines, lines[1], "half,a,line"]) + "\n")
    out = prepare(copy, tmp_path / "out", write=True)
    reasons = (out / "skipped.tsv").read_text()
    bad = ("clean.csv:3: found 'loud'", "leads out", "clean.csv:6: .* is that of line 2", "clean.csv:7: expected 7")
    for pattern in bad:
        assert len([line for line in reasons.splitlines() if re.search(pattern, line)]) == 1, pattern
    assert len(read_manifest(out / "dev.jsonl")) == 2
    assert "dev: 2 of 6 mixtures prepared" in (out / "verification.json").read_text()


def test_what_cannot_be_prepared(copy, tmp_path):
    (copy / "other").mkdir()
    (copy / "other" / "libri2mix_dev-clean.csv").write_text("mixture_ID,original_ID,source_1_path\nx,y,z\n")
    (copy / "odd").mkdir()
    shutil.copy(copy / "metadata" / "libri2mix_dev-clean.csv", copy / "odd" / "libri2mix_clean.csv")
    (copy / "three").mkdir()
    shutil.copy(copy / "metadata" / "libri3mix_dev-clean.csv", copy / "three" / "libri2mix_dev-clean.csv")
    (tmp_path / "file").write_text("")
    good = [copy / "LibriSpeech", copy / "wham_noise", copy / "metadata", tmp_path / "out"]
    mistakes = [
        (0, copy / "nowhere", {}, "nowhere: no such folder"),
        (0, copy / "wham_noise", {}, "wham_noise: contains none; expected a folder with train.../"),
        (1, copy / "LibriSpeech" / "dev-clean", {}, "contains none; expected"),
        (2, copy / "LibriSpeech", {}, r"contains no libri2mix_\*.csv"),
        (2, copy / "other", {}, "columns mixture_ID, original_ID, source_1_path; expected mixture_ID, source_1_path, "),
        (2, copy / "three", {}, "another number of speakers"),
        (2, copy / "odd", {}, "goes on with train"),
        (3, tmp_path / "file" / "out", {}, "cannot be written"),
        (3, tmp_path / "out", {"sample_rate": 44100}, "--sample-rate 44100"),
        (3, tmp_path / "out", {"mode": "mean"}, "--mode mean"),
        (3, tmp_path / "out", {"speakers": 1}, "speakers: found 1"),
        (3, tmp_path / "out", {"processes": 0}, "processes: found 0"),
    ]
    check_mistakes(prepare_librimix, good, mistakes)


def test_nothing_that_can_be_made_is_an_error(copy, tmp_path):
    shutil.rmtree(copy / "wham_noise")
    (copy / "wham_noise" / "tr").mkdir(parents=True)
    complaint(lambda: prepare(copy, tmp_path / "out"), r"none of the mixtures can be made: .*no such file")


def test_a_disk_that_is_full_half_way_leaves_nothing_that_is_trusted_later(copy, tmp_path, monkeypatch):
    write, left = audio.write, [25]

    def write_or_fail(path, *arguments, **options):
        if left[0] == 0:
            Path(path).with_name(f".{Path(path).stem}.1-1.tmp.wav").write_bytes(b"RIFF")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        left[0] -= 1
        return write(path, *arguments, **options)

    monkeypatch.setattr(audio, "write", write_or_fail)
    complaint(lambda: prepare(copy, tmp_path / "out", write=True), "no space left on the disk")
    assert not (tmp_path / "out" / "train.jsonl").exists()
    monkeypatch.undo()
    out = prepare(copy, tmp_path / "out", write=True)
    whole = prepare(copy, tmp_path / "whole", write=True)
    wavs = {p.relative_to(whole): p.read_bytes() for p in whole.rglob("*.wav")}
    assert {p.relative_to(out): p.read_bytes() for p in out.rglob("[!.]*.wav")} == wavs
    assert (out / "train.jsonl").read_bytes() == (whole / "train.jsonl").read_bytes()


def test_two_processes_write_what_one_writes(corpus, tmp_path):
    outs = [prepare(corpus, tmp_path / str(n), write=True, processes=n, speakers=3) for n in (1, 2)]
    one, two = ({p.relative_to(out): p.read_bytes() for p in out.rglob("*.wav")} for out in outs)
    assert one == two and len(one) == 12 * 7


def test_noise_at_other_speeds_is_made_where_it_is_absent(copy, tmp_path, capsys):
    path = copy / "metadata" / "libri2mix_train-clean-100.csv"
    rows = table(path)
    originals = [row[5] for row in rows[1:3]]
    rows[1][5] = originals[0].replace(".wav", "sp08.wav")
    rows[2][5] = originals[1].replace(".wav", "sp12.wav")
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    tone = 0.3 * np.sin(2 * np.pi * 1000 * np.arange(30000) / RATE)
    soundfile.write(copy / "wham_noise" / originals[0], np.stack([tone, 0 * tone], axis=1), RATE)
    soundfile.write(copy / "wham_noise" / originals[1], np.stack([tone, 0 * tone], axis=1), RATE)
    out = prepare(copy, tmp_path / "out")
    for row, speed, length in ((rows[1], 0.8, 37500), (rows[2], 1.2, 25000)):
        made, rate = soundfile.read(out / "wham_noise" / row[5])
        assert (made.shape, rate) == ((length,), RATE)
        assert np.argmax(np.abs(np.fft.rfft(made[8000:24000]))) == 1000 * speed  # 1 Hz a bin
    entries = read_manifest(out / "train_noisy.jsonl")
    assert entries[0].noise is not None and entries[0].resolve(entries[0].noise.path).is_file()
    assert "warning: 2 noises at other speeds" in capsys.readouterr().err
