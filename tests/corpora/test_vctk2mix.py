import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from scipy.signal import resample_poly

from sepkit.corpora.options import VCTK2MixOptions
from sepkit.corpora.vctk2mix import first_sound
from sepkit.corpora.vctk2mix import prepare_vctk2mix as _prepare_vctk2mix
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from tests.corpora.calling import by_place, check_mistakes, table

prepare_vctk2mix = by_place(_prepare_vctk2mix, VCTK2MixOptions, "vctk", "wham_noise", "metadata", "out")
SPEAKERS = ("p225", "p226", "p280", "s5")
COLUMNS = ["mixture_ID", "source_1_path", "source_1_gain", "source_2_path", "source_2_gain", "noise_path", "noise_gain"]
KINDS = ("mix_clean", "mix_both", "mix_single")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """VCTK-Corpus/, wham_noise/ and metadata/ of four mixtures."""
    root = tmp_path_factory.mktemp("corpus")
    generator = np.random.default_rng(0)
    vctk = root / "VCTK-Corpus"
    for speaker in SPEAKERS:
        for number in range(1, 3):
            path = vctk / "wav48" / speaker / f"{speaker}_00{number}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            # Nearly silent for a while, loud, and nearly silent again.
            length = int(generator.integers(150000, 165000))
            loudness = np.full(length, 1e-3)
            loudness[int(generator.integers(6000, 20000)) : -9000] = 0.1
            soundfile.write(path, loudness * generator.standard_normal(length), 48000)
    rows = "ID  AGE  GENDER  ACCENTS  REGION\n225  23  F  English  x\n226  22  M  English\n"
    (vctk / "speaker-info.txt").write_text(rows)
    rows = []
    # Noise shorter than both, between the two, and longer than both.
    for number, length in enumerate((20000, 51500, 70001, 60000)):
        noise = Path("tt", f"n{number}_1_-1.wav")
        (root / "wham_noise" / noise).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(root / "wham_noise" / noise, 0.05 * generator.standard_normal((length, 2)), 16000)
        one, other = f"p225_00{1 + number % 2}", f"{SPEAKERS[1 + 2 * (number // 2)]}_00{1 + number % 2}"
        gains = [float(gain) for gain in generator.uniform(0.3, 2, 3)]
        rows.append([
            f"{one}_{other}", f"wav16_cut/{one}.wav", gains[0], f"wav16_cut/{other}.wav", gains[1],
            noise.as_posix(), gains[2],
        ])  # fmt: skip
    table = root / "metadata" / "VCTK2mix_VCTK_md.csv"
    table.parent.mkdir()
    with open(table, "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    (table.parent / "VCTK2mix_VCTK_md_info.csv").write_text("mixture_ID\n")
    return root


def prepare(corpus: Path, out: Path, **options) -> Path:
    folders = (corpus / name for name in ("VCTK-Corpus", "wham_noise", "metadata"))
    return prepare_vctk2mix(*folders, out, **{"processes": 1, **options})


def pcm16(waveform: np.ndarray, rate: int, folder: Path) -> np.ndarray:
    """As python-soundfile writes it and reads it again."""
    soundfile.write(folder / "pcm16.wav", waveform, rate)
    return soundfile.read(folder / "pcm16.wav", dtype="int16")[0]


def cut(corpus: Path, name: str, folder: Path) -> np.ndarray:
    """An utterance without the silence at its beginning, at 16 kHz in 16 bits."""
    waveform = soundfile.read(corpus / "VCTK-Corpus" / "wav48" / name.split("_")[0] / f"{name}.wav")[0]
    squares = np.concatenate([np.zeros(1024), waveform**2, np.zeros(1024)])
    levels = np.array([squares[start : start + 2048].mean() for start in range(0, len(squares) - 2047, 512)])
    begin = 512 * np.flatnonzero(levels > levels.max() / 100)[0]
    assert begin > 0
    return pcm16(resample_poly(waveform[begin:], 16000, 48000), 16000, folder)


def expected(corpus: Path, row: list[str], rate: int, mode: str, folder: Path) -> dict[str, np.ndarray]:
    parts = [cut(corpus, Path(row[index]).stem, folder).astype(np.float32) / np.float32(32768) for index in (1, 3)]
    longest = max(len(part) for part in parts)
    parts.append(soundfile.read(corpus / "wham_noise" / row[5], dtype="float32", stop=longest)[0][:, 0])
    scaled = [part * np.float32(row[index]) for part, index in zip(parts, (2, 4, 6), strict=True)]
    parts = [resample_poly(part, rate, 16000) for part in scaled]
    lengths = [len(part) for part in parts]
    if mode == "min":
        one, two, noise = (part[: min(lengths)] for part in parts)
    else:
        one, two, noise = (np.pad(part, (0, max(lengths) - len(part))) for part in parts)
    mixed = {"mix_clean": one + two, "mix_both": one + two + noise, "mix_single": one + noise}
    return {"s1": one, "s2": two, "noise": noise, **mixed}


@pytest.mark.parametrize("rate", [8000, 16000])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_written_and_described_mixtures_are_the_official_ones(corpus, tmp_path, rate, mode):
    written = prepare(corpus, tmp_path / "written", sample_rate=rate, mode=mode, write=True)
    described = prepare(corpus, tmp_path / "described", sample_rate=rate, mode=mode)
    root = written / "VCTK2Mix" / f"wav{rate // 1000}k" / mode
    rows = table(corpus / "metadata" / "VCTK2mix_VCTK_md.csv")[1:]
    unrounded = [expected(corpus, row, rate, mode, tmp_path) for row in rows]
    for row, waveforms in zip(rows, unrounded, strict=True):
        for name, waveform in waveforms.items():
            samples, found_rate = soundfile.read(root / "VCTK_md" / name / f"{row[0]}.wav", dtype="int16")
            np.testing.assert_array_equal(samples, pcm16(waveform, rate, tmp_path))
            assert found_rate == rate
    for kind, suffix in zip(KINDS, ("", "_noisy", "_single"), strict=True):
        entries = read_manifest(described / f"test{suffix}.jsonl")
        recorded = read_manifest(written / f"test{suffix}.jsonl")
        assert [e.id for e in entries] == [e.id for e in recorded] == [row[0] for row in rows]
        for entry, other, waveforms in zip(entries, recorded, unrounded, strict=True):
            np.testing.assert_array_equal(mix_entry(entry).mixture, waveforms[kind])
            last = len(waveforms[kind]) - 400
            np.testing.assert_array_equal(mix_entry(entry, last, 300).mixture, waveforms[kind][last : last + 300])
            read = mix_entry(other).mixture
            np.testing.assert_array_equal(read, pcm16(waveforms[kind], rate, tmp_path) / np.float32(32768))
            assert entry.num_samples == other.num_samples == len(waveforms[kind])
            assert [s.speaker for s in other.sources] == [s.speaker for s in entry.sources]
        lines = table(root / "metadata" / f"mixture_VCTK_md_{kind}.csv")
        assert [line[0] for line in lines[1:]] == [row[0] for row in rows]
        assert lines[1][1] == str(root.absolute() / "VCTK_md" / kind / f"{rows[0][0]}.wav")
    sources = read_manifest(described / "test.jsonl")[0].sources
    assert [(source.speaker, source.sex) for source in sources] == [("p225", "F"), ("p226", "M")]
    assert not (described / "VCTK2Mix").exists() and not (written / "train.jsonl").exists()
    reports = [json.loads((out / "verification.json").read_text()) for out in (written, described)]
    sums = [list(report["splits"]["test-VCTK_md"]["sha256"].values()) for report in reports]
    assert sums[0] == sums[1] and len(sums[0]) == 4 and reports[0]["problems"] == []


@pytest.mark.slow
def test_the_silence_cut_is_that_of_librosa():
    import librosa

    generator = np.random.default_rng(4)
    for length in (1, 700, 30000, 50001):
        loudness = 10.0 ** generator.uniform(-4, 0, -(-length // 4000)).repeat(4000)[:length]
        waveform = loudness * generator.standard_normal(length)
        assert first_sound(waveform) == librosa.effects.split(waveform, top_db=20)[0][0]
    assert first_sound(np.zeros(9000)) == 0


def test_the_same_command_again_cuts_nothing_again(corpus, tmp_path):
    out = prepare(corpus, tmp_path / "out", write=True, processes=2)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.wav")}
    assert len(before) == 6 + 4 * 6
    prepare(corpus, out, write=True)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.wav")} == before


def test_bad_recordings_are_listed_and_the_rest_goes_on(copy, tmp_path):
    wav48 = copy / "VCTK-Corpus" / "wav48"
    rows = table(copy / "metadata" / "VCTK2mix_VCTK_md.csv")[1:]
    shutil.copytree(wav48 / "p226", wav48 / "p226_again")  # two files of one name
    damaged = wav48 / "s5" / "s5_001.wav"
    damaged.write_bytes(damaged.read_bytes()[:-1000])
    out = prepare(copy, tmp_path / "out", write=True)
    listed = dict(line.split("\t") for line in (out / "skipped.tsv").read_text().splitlines())
    assert set(listed) == {f"VCTK_md/{row[0]}" for row in rows[:3]}
    assert "p226_001.wav: two files of that name" in listed[f"VCTK_md/{rows[0][0]}"]
    assert "s5_001.wav: truncated" in listed[f"VCTK_md/{rows[2][0]}"]
    assert [entry.id for entry in read_manifest(out / "test.jsonl")] == [rows[3][0]]
    shutil.rmtree(wav48 / "p226_again")
    shutil.rmtree(wav48 / "s5")
    out = prepare(copy, tmp_path / "out", write=True)
    listed = dict(line.split("\t") for line in (out / "skipped.tsv").read_text().splitlines())
    assert set(listed) == {f"VCTK_md/{rows[2][0]}"} and "no such file in wav48/" in listed[f"VCTK_md/{rows[2][0]}"]


def test_what_cannot_be_prepared(copy, tmp_path):
    (tmp_path / "new" / "wav48_silence_trimmed").mkdir(parents=True)
    (copy / "other").mkdir()
    (copy / "other" / "VCTK2mix_VCTK_md.csv").write_text("mixture_ID,source_1_path\nx,y\n")
    good = [copy / "VCTK-Corpus", copy / "wham_noise", copy / "metadata", tmp_path / "out"]
    mistakes = [
        (0, tmp_path / "new", {}, r"VCTK 0.92 .*expected 0.80"),
        (0, copy / "nowhere", {}, "nowhere: no such folder; expected a folder with wav48"),
        (1, copy / "VCTK-Corpus", {}, "contains none; expected a folder with tt"),
        (2, copy / "VCTK-Corpus", {}, r"contains no VCTK2mix_\*.csv"),
        (2, copy / "other", {}, "columns mixture_ID, source_1_path; expected"),
        (3, tmp_path / "out", {"sample_rate": 48000}, "--sample-rate 48000"),
    ]
    check_mistakes(prepare_vctk2mix, good, mistakes)


def test_the_folder_above_will_do(corpus, tmp_path):
    out = prepare_vctk2mix(corpus, corpus, corpus / "metadata", tmp_path / "out", processes=1)
    assert len(read_manifest(out / "test.jsonl")) == 4
