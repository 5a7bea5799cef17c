"""WSJ0-mix on small trees in the layout of WSJ0: every sample against plain NumPy written from the published rules."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import soundfile

from sepkit.cli.main import main
from sepkit.corpora.active_level import active_speech_level
from sepkit.corpora.options import WSJ0MixOptions
from sepkit.corpora.wsj0mix import prepare_wsj0_mix as _prepare_wsj0_mix
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from tests.corpora.calling import by_place

ARGUMENTS = ("wsj0", "lists", "out", "speakers", "sample_rate", "mode")
prepare_wsj0_mix = by_place(_prepare_wsj0_mix, WSJ0MixOptions, *ARGUMENTS)
FS = 16000
STEP = 1 / 32768
# Condition -> speakers of its recordings, as in WSJ0: tr and cv from si_tr_s, tt from si_dt_05 and si_et_05.
RECORDINGS = {"si_tr_s": ["01t", "40n", "01x", "020", "40m"], "si_dt_05": ["050", "22g"]}
RECORDINGS["si_et_05"] = ["440", "447", "441"]


def speech_like(seed: int, seconds: float, level: float) -> np.ndarray:
    """Noise that comes and goes as syllables and pauses do, int16."""
    generator = np.random.default_rng(seed)
    time = np.arange(round(seconds * FS)) / FS
    envelope = (np.sin(2 * np.pi * (2 + seed % 3) * time) > -0.3) * (1 + 0.5 * np.sin(2 * np.pi * 0.7 * time))
    noise = scipy.signal.lfilter([1], [1, -0.7], generator.standard_normal(len(time)))
    return np.clip(np.round(32768 * level * envelope * noise), -32768, 32767).astype(np.int16)


def utterances(folder: str) -> list[str]:
    return [f"wsj0/{folder}/{s}/{s}o030{take}.wav" for s in RECORDINGS[folder] for take in "1a"]


@pytest.fixture(scope="module")
def wsj0(tmp_path_factory) -> Path:
    """The folder above wsj0, with two recordings a speaker of 0.5 to 1.2 s."""
    root = tmp_path_factory.mktemp("corpus")
    for number, path in enumerate(path for folder in RECORDINGS for path in utterances(folder)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        samples = speech_like(number, 0.5 + 0.037 * number, 0.002 + 0.001 * number)
        soundfile.write(root / path, samples, FS, subtype="PCM_16")
    return root


def write_lists(folder: Path, speakers: int = 2, table: bool = True, digits: str = ".5g", count: int = 4) -> Path:
    """Mixing lists as published, trailing blank included, and tables of active levels."""
    generator = np.random.default_rng(speakers)
    folder.mkdir(parents=True, exist_ok=True)
    pools = {"tr": utterances("si_tr_s"), "cv": utterances("si_tr_s"),
             "tt": utterances("si_dt_05") + utterances("si_et_05")}  # fmt: skip
    levels: dict[str, float] = {}
    for condition, pool in pools.items():
        lines = []
        for _ in range(count if condition == "tr" else 2):
            # Speakers differ: the pool has two recordings of each in a row.
            chosen = 2 * generator.permutation(len(pool) // 2)[:speakers] + generator.integers(2, size=speakers)
            first = generator.uniform(0, 2.5)
            snrs = [first, -first, 0, 0.012345678901234567, -2.125][:speakers]
            lines.append("".join(f"{pool[i]} {snr:{digits}} " for i, snr in zip(chosen, snrs, strict=True)))
        (folder / f"mix_{speakers}_spk_{condition}.txt").write_text("\n".join(lines) + "\n")
        levels |= {Path(path).stem: 10 ** generator.uniform(-5, -3) for path in pool}
    if table:
        (folder / "activlev").mkdir(exist_ok=True)
        for split in RECORDINGS:
            text = "".join(f"{Path(p).stem} {levels[Path(p).stem]:.16e}\n" for p in utterances(split))
            (folder / "activlev" / f"activlev_{split}.txt").write_text(text)
    return folder


def expected_files(root: Path, lists: Path, speakers: int, rate: int, mode: str, condition: str):
    """Name -> {mix, s1, ...} int16, from the published rules and nothing of ours."""
    levels = {}
    for path in (lists / "activlev").glob("*.txt"):
        for line in path.read_text().splitlines():
            utterance, level = line.split(" ")
            levels[utterance] = float(level)
    files = {}
    for line in (lists / f"mix_{speakers}_spk_{condition}.txt").read_text().splitlines():
        words = line.split()
        paths, snrs = words[0::2], [float(word) for word in words[1::2]]
        read = [soundfile.read(root / path, dtype="float32")[0] for path in paths]
        resampled = [scipy.signal.resample_poly(x, rate, FS) for x in read]
        assert all(x.dtype == np.float32 for x in resampled)
        longest, shortest = max(map(len, resampled)), min(map(len, resampled))
        scaled = []
        for x, path, snr in zip(resampled, paths, snrs, strict=True):
            padded = np.concatenate([x.astype(np.float64), np.zeros(longest - len(x))])
            scaled.append(padded / np.sqrt(levels[path.split("/")[-1][:-4]]) * 10 ** (snr / 20))
        mixture = scaled[0]
        for x in scaled[1:]:
            mixture = mixture + x
        stop = shortest if mode == "min" else longest
        signals = {"mix": mixture[:stop]} | {f"s{i}": x[:stop] for i, x in enumerate(scaled, 1)}
        gain = max([1.0] + [np.abs(x).max() for x in signals.values()]) / 0.9
        parts = []
        for path, snr in zip(paths, snrs, strict=True):
            parts += [path.split("/")[-1][:-4], f"{snr:12.8g}".strip()]
        files["_".join(parts)] = {k: np.int16(np.round(2**15 * (x / gain))) for k, x in signals.items()}
    return files


@pytest.mark.parametrize(
    ("speakers", "rate", "mode", "digits"),
    [(2, 8000, "min", ".5g"), (2, 8000, "max", ".5g"), (2, 16000, "min", ".5g"), (3, 8000, "min", ".5g"),
     (3, 16000, "max", ".5g"), (4, 8000, "max", ".17g"), (5, 8000, "min", ".17g")],
)  # fmt: skip
def test_files_and_names_are_those_of_the_published_script(wsj0, tmp_path, speakers, rate, mode, digits):
    lists = write_lists(tmp_path / "lists", speakers, digits=digits)
    out = tmp_path / "out"
    prepare_wsj0_mix(wsj0, lists, out, speakers, rate, mode, write=True, processes=1)
    described = tmp_path / "described"
    prepare_wsj0_mix(wsj0 / "wsj0", lists, described, speakers, rate, mode, processes=1)
    base = out / f"{speakers}speakers" / f"wav{rate // 1000}k" / mode
    assert sorted(path.name for path in base.iterdir()) == ["cv", "tr", "tt"]
    for condition, manifest in (("tr", "train"), ("cv", "dev"), ("tt", "test")):
        expected = expected_files(wsj0, lists, speakers, rate, mode, condition)
        kinds = ["mix", *(f"s{i}" for i in range(1, speakers + 1))]
        assert sorted(path.name for path in (base / condition).iterdir()) == kinds
        written = read_manifest(out / f"{manifest}.jsonl")
        on_the_fly = read_manifest(described / f"{manifest}.jsonl")
        assert [e.id for e in written] == [e.id for e in on_the_fly] == list(expected)
        for kind in kinds:
            assert sorted(p.stem for p in (base / condition / kind).iterdir()) == sorted(expected)
        for one, other in zip(written, on_the_fly, strict=True):
            files = expected[one.id]
            for kind in kinds:
                header = soundfile.info(base / condition / kind / f"{one.id}.wav")
                assert (header.samplerate, header.subtype, header.channels) == (rate, "PCM_16", 1)
                read, _ = soundfile.read(base / condition / kind / f"{one.id}.wav", dtype="int16")
                np.testing.assert_array_equal(read, files[kind])
            for entry, tolerance in ((one, 0), (other, 0.51 * STEP)):
                assert (entry.sample_rate, entry.num_samples, entry.mode) == (rate, len(files["mix"]), mode)
                mixed = mix_entry(entry)
                np.testing.assert_allclose(mixed.mixture, files["mix"] * STEP, rtol=0, atol=tolerance)
                for source, kind in zip(mixed.sources, kinds[1:], strict=True):
                    np.testing.assert_allclose(source, files[kind] * STEP, rtol=0, atol=tolerance)
            assert other.mixture is None and one.mixture is not None
            assert [s.speaker for s in one.sources] == [s.speaker for s in other.sources]
            assert one.sources[0].speaker == one.id[:3]


def drawn(folder):
    """The four mixtures of the training set with the SNRs in their names, dB."""
    entries = list(read_manifest(folder / "out" / "train.jsonl"))
    assert len(entries) == 4
    return [(entry, [float(word) for word in entry.id.split("_")[1::2]]) for entry in entries]


def test_quiet_mixtures_are_not_made_louder(wsj0, tmp_path):
    lists = write_lists(tmp_path / "lists")
    for path in (lists / "activlev").iterdir():
        path.write_text("".join(f"{line.split()[0]} 1.0\n" for line in path.read_text().splitlines()))
    prepare_wsj0_mix(wsj0, lists, tmp_path / "out", processes=1)
    for entry, snrs in drawn(tmp_path):
        assert [s.gain for s in entry.sources] == pytest.approx([0.9 * 10 ** (snr / 20) for snr in snrs], rel=1e-12)


def test_levels_are_measured_where_there_is_no_table(wsj0, tmp_path, capsys):
    prepare_wsj0_mix(wsj0, write_lists(tmp_path / "lists", table=False), tmp_path / "out", processes=1)
    assert "measured here (ITU-T P.56)" in capsys.readouterr().out
    for entry, snrs in drawn(tmp_path):
        powers = []
        for source, snr in zip(entry.sources, snrs, strict=True):
            waveform = soundfile.read(source.path, dtype="float32")[0]
            level = active_speech_level(scipy.signal.resample_poly(waveform, 8000, FS), 8000)
            powers.append(source.gain**2 * level / 10 ** (snr / 10))
        # At equal relative level both have the same active level.
        assert powers[0] == pytest.approx(powers[1], rel=1e-6)
    # One that the table lacks is measured, the others are the table's.
    some = write_lists(tmp_path / "some")
    path = some / "activlev" / "activlev_si_tr_s.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    prepare_wsj0_mix(wsj0, some, tmp_path / "out2", processes=1)
    assert "have no level in the table" in capsys.readouterr().out


def test_only_the_lists_that_are_there(wsj0, tmp_path):
    lists = write_lists(tmp_path / "lists")
    (lists / "mix_2_spk_cv.txt").unlink()
    (lists / "mix_2_spk_tr.txt").unlink()
    prepare_wsj0_mix(wsj0, lists, tmp_path / "out", processes=1)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.jsonl")) == ["test.jsonl"]


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(folder.rglob("*.wav"))}


def test_the_command_line_and_the_same_command_again(wsj0, tmp_path, capsys):
    lists, out = write_lists(tmp_path / "lists"), tmp_path / "out"
    command = ["prepare", "wsj0-mix", "--wsj0", str(wsj0), "--lists", str(lists), "--out", str(out), "--write"]
    assert main([*command, "--processes", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == str(out)
    assert "share" not in captured.err, "tr and cv have the same speakers by design"
    assert json.loads((out / "verification.json").read_text())["problems"] == []
    noted = json.loads((out / "wsj0-mix.json").read_text())
    assert noted.pop("format") == 1
    places = {f"2speakers/wav8k/min/{condition}" for condition in ("tr", "cv", "tt")}
    assert set(noted) == places | {"train.jsonl", "dev.jsonl", "test.jsonl"}
    before, manifests = snapshot(out), [(out / f"{n}.jsonl").read_bytes() for n in ("train", "dev", "test")]
    gone = out / "2speakers" / "wav8k" / "min" / "tr" / "mix"
    lost = sorted(gone.iterdir())[1]
    lost.unlink()
    assert main([*command, "--processes", "1"]) == 0
    again = snapshot(out)
    assert {path: content for path, (_, content) in again.items()} == {p: c for p, (_, c) in before.items()}
    assert {Path(path).stem for path in before if again[path][0] != before[path][0]} == {lost.stem}
    assert manifests == [(out / f"{n}.jsonl").read_bytes() for n in ("train", "dev", "test")]
    # Wavs of other levels are not taken for these.
    table = lists / "activlev" / "activlev_si_tr_s.txt"
    table.write_text("".join(f"{line.split()[0]} 1e-4\n" for line in table.read_text().splitlines()))
    assert main([*command, "--processes", "1"]) == 2
    assert "give another --out" in capsys.readouterr().err


def test_descriptions_are_kept_until_lists_or_levels_change(wsj0, tmp_path, monkeypatch):
    lists, out = write_lists(tmp_path / "lists"), tmp_path / "out"
    prepare_wsj0_mix(wsj0, lists, out, processes=1)
    before = (out / "train.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("sepkit.corpora.wsj0mix.mix_sources", lambda *a: pytest.fail("made again"))
        prepare_wsj0_mix(wsj0, lists, out, processes=1)
    assert (out / "train.jsonl").read_bytes() == before
    # The same lists of another copy of the corpus: its paths, and not those of the first.
    shutil.copytree(wsj0, tmp_path / "moved")
    prepare_wsj0_mix(tmp_path / "moved", lists, out, processes=1)
    assert all(str(tmp_path / "moved") in s.path for entry in read_manifest(out / "train.jsonl") for s in entry.sources)
    prepare_wsj0_mix(wsj0, lists, out, mode="max", processes=1)
    assert {entry.mode for entry in read_manifest(out / "train.jsonl")} == {"max"}


def test_flac_and_sphere_and_upper_case_names_are_found(wsj0, tmp_path):
    lists = write_lists(tmp_path / "lists")
    prepare_wsj0_mix(wsj0, lists, tmp_path / "wav", processes=1)
    root = tmp_path / "discs"
    for number, path in enumerate(sorted(wsj0.rglob("*.wav"))):
        samples, _ = soundfile.read(path, dtype="int16")
        target = root / path.relative_to(wsj0)
        target.parent.mkdir(parents=True, exist_ok=True)
        if number % 2:
            soundfile.write(target.with_suffix(".flac"), samples, FS, subtype="PCM_16")
        else:
            name = target.with_suffix(".WV1" if number % 4 else ".wv1")
            soundfile.write(name, samples, FS, subtype="PCM_16", format="NIST")
            # The LDC ships both microphones.
            soundfile.write(target.with_suffix(".wv2"), samples // 3, FS, subtype="PCM_16", format="NIST")
    prepare_wsj0_mix(root / "wsj0", lists, tmp_path / "other", processes=1)
    for name in ("train", "test"):
        pairs = zip(read_manifest(tmp_path / "wav" / f"{name}.jsonl"),
                    read_manifest(tmp_path / "other" / f"{name}.jsonl"), strict=True)  # fmt: skip
        for one, other in pairs:
            np.testing.assert_array_equal(mix_entry(one).mixture, mix_entry(other).mixture)


def test_the_far_microphone_is_refused(wsj0, tmp_path, refused):
    lists = write_lists(tmp_path / "lists")
    for kind in ("alone", "beside"):
        root = tmp_path / kind
        shutil.copytree(wsj0, root)
        for path in sorted(root.rglob("*.wav")):
            samples, _ = soundfile.read(path, dtype="int16")
            soundfile.write(path.with_suffix(".wv2"), samples, FS, subtype="PCM_16", format="NIST")
            if kind == "alone":
                path.unlink()
        command = ["prepare", "wsj0-mix", "--wsj0", str(root), "--lists", str(lists), "--out", str(tmp_path / "out")]
        error = refused(command)
        assert "far microphone (wv2)" in error and "sph2pipe" in error
    assert not (tmp_path / "out" / "train.jsonl").exists()


def test_levels_that_are_not_the_recordings_are_warned_of(wsj0, tmp_path, capsys):
    lists = write_lists(tmp_path / "lists", table=False)
    (lists / "activlev").mkdir()
    for factor, warned in ((1.05, False), (4.0, True)):
        rows = []
        for path in sorted(wsj0.rglob("*.wav")):
            waveform = soundfile.read(path, dtype="float32")[0]
            level = active_speech_level(scipy.signal.resample_poly(waveform, 8000, FS), 8000)
            rows.append(f"{path.stem} {factor * level:.16e}\n")
        (lists / "activlev" / "activlev.txt").write_text("".join(rows))
        prepare_wsj0_mix(wsj0, lists, tmp_path / f"out{factor}", processes=1)
        assert ("from the published active levels" in capsys.readouterr().err) == warned


def test_what_is_bad_is_listed_and_the_rest_goes_on(wsj0, tmp_path, capsys):
    lists = write_lists(tmp_path / "lists", count=20)
    root = tmp_path / "root"
    shutil.copytree(wsj0, root)
    text = (lists / "mix_2_spk_tr.txt").read_text()
    used = list(dict.fromkeys(text.split()[0::2]))
    assert len(used) == 10, "all recordings of si_tr_s occur"
    first, second, third, fourth = (root / path for path in used[:4])
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1001])
    samples, _ = soundfile.read(third, dtype="int16")
    soundfile.write(third, samples, 8000, subtype="PCM_16")
    fourth.write_bytes(b"no audio")
    (lists / "mix_2_spk_tr.txt").write_text(text + text.splitlines(keepends=True)[-1])
    prepare_wsj0_mix(root, lists, tmp_path / "out", write=True, processes=1)
    bad = {path.stem for path in (first, second, third, fourth)}
    lines = [line.split() for line in text.splitlines()]
    names = [[Path(a).stem, b, Path(c).stem, d] for a, b, c, d in lines]
    good = ["_".join(name) for name in names if not {name[0], name[2]} & bad]
    assert good and [entry.id for entry in read_manifest(tmp_path / "out" / "train.jsonl")] == good
    listed = (tmp_path / "out" / "skipped.tsv").read_text()
    for message in (f"{first.name}: no such file", f"{second.name}: truncated", f"{third.name}: 8000 Hz, 1 channel",
                    f"{fourth.name}: cannot be read as audio", "is that of .*mix_2_spk_tr.txt:20"):  # fmt: skip
        assert any(re.search(message, line) for line in listed.splitlines()), message
    assert "left out, listed in" in capsys.readouterr().err
    # Mended, the same command makes the rest.
    shutil.copytree(wsj0, root, dirs_exist_ok=True)
    prepare_wsj0_mix(root, lists, tmp_path / "out", write=True, processes=1)
    assert len(read_manifest(tmp_path / "out" / "train.jsonl")) == 20


def test_a_full_disk_leaves_nothing_half_written(wsj0, tmp_path, monkeypatch, capsys):
    import errno

    from sepkit.data import audio

    lists, out = write_lists(tmp_path / "lists"), tmp_path / "out"
    opened, calls = audio._open_wav, []

    def full(path, temporary, *layout):
        calls.append(path)
        if len(calls) == 5:
            temporary.write_bytes(b"RIFF")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return opened(path, temporary, *layout)

    command = ["prepare", "wsj0-mix", "--wsj0", str(wsj0), "--lists", str(lists), "--out", str(out), "--write",
               "--processes", "1"]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(audio, "_open_wav", full)
        assert main(command) == 2
    assert "no space left on the disk" in capsys.readouterr().err.splitlines()[-1]
    assert not (out / "train.jsonl").exists() and not list(out.rglob("*.tmp*"))
    kept = snapshot(out)
    assert len(kept) == 4 and all(soundfile.info(path).frames > 0 for path in kept)
    assert main(command) == 0
    assert {path: snapshot(out)[path] for path in list(kept)[:1]}
    for name, files in expected_files(wsj0, lists, 2, 8000, "min", "tr").items():
        read, _ = soundfile.read(out / "2speakers/wav8k/min/tr/mix" / f"{name}.wav", dtype="int16")
        np.testing.assert_array_equal(read, files["mix"])


def test_wrong_input_is_said_in_one_line(wsj0, tmp_path, refused):
    lists, three = write_lists(tmp_path / "lists"), write_lists(tmp_path / "three", 3)
    (tmp_path / "empty").mkdir()
    renamed = tmp_path / "renamed"
    shutil.copytree(three, renamed)
    for path in renamed.glob("mix_3*"):
        path.rename(path.with_name(path.name.replace("3", "2", 1)))
    words = write_lists(tmp_path / "words")
    (words / "mix_2_spk_tr.txt").write_text("wsj0/a.wav loud wsj0/b.wav 1\n")
    twice = write_lists(tmp_path / "twice")
    shutil.copy(twice / "activlev" / "activlev_si_tr_s.txt", twice / "activlev" / "activlev_tr.txt")
    prepare_wsj0_mix(wsj0, twice, tmp_path / "fine", processes=1)
    table = twice / "activlev" / "activlev_tr.txt"
    table.write_text(table.read_text().replace("e-0", "e-1"))
    for root, folder, more, message in [
        (tmp_path / "no", lists, [], "no such folder; expected the folder wsj0"),
        (tmp_path / "empty", lists, [], " recordings of the lists is there, the first: wsj0/si_tr_s/"),
        (wsj0, tmp_path / "no", [], "no such folder; expected one with mix_2_spk_tr.txt"),
        (wsj0, tmp_path / "empty", [], "contains none of mix_2_spk_tr.txt, mix_2_spk_cv.txt"),
        (wsj0, lists, ["--speakers", "6"], "expected 2 to 5"),
        (wsj0, lists, ["--speakers", "3"], "contains none of mix_3_spk_tr.txt"),
        (wsj0, lists, ["--sample-rate", "44100"], "8000 or 16000"),
        (wsj0, lists, ["--mode", "mid"], "mid"),
        (wsj0, lists, ["--processes", "0"], "--processes: found 0"),
        (wsj0, renamed, [], "mix_2_spk_tr.txt:1: 6 columns, expected 4"),
        (wsj0, words, [], "found 'loud', expected a finite number"),
        (wsj0, twice, [], "has two levels"),
    ]:
        command = ["prepare", "wsj0-mix", "--wsj0", str(root), "--lists", str(folder), "--out", str(tmp_path / "out")]
        assert message in refused([*command, *more])
