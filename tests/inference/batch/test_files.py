import copy
import json
import os
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sepkit.data import audio
from sepkit.files import write_json
from sepkit.inference import Separator, separate_files
from sepkit.inference.batch.reports import merge_summaries
from sepkit.inference.options import OutputOptions
from sepkit.models import build_model
from tests.complaint import complaint
from tests.inference.bands import Scores
from tests.inference.folders import files_of, record
from tests.ordinary_user import as_ordinary_user
from tests.tiny_models import RECURRENT


def test_estimates_are_those_of_the_separator(tmp_path, separator):
    waveform = record(tmp_path / "in" / "talk.wav", 4410, 44100, channels=2)
    report = separate_files([tmp_path / "in"], separator, tmp_path / "out", model_name="a model")
    expected = separator.separate(waveform, 44100)
    assert files_of(tmp_path / "out") == ["talk.json", "talk_s1.wav", "talk_s2.wav"]
    for index in range(2):
        path = tmp_path / "out" / f"talk_s{index + 1}.wav"
        assert audio.info(path).sample_rate == 44100
        np.testing.assert_allclose(audio.read(path), expected.estimates[index], atol=1e-6)
    told = json.loads((tmp_path / "out" / "talk.json").read_text())
    assert (told["model"], told["sample_rate"], told["num_samples"]) == ("a model", 44100, 4410)
    assert told["estimates"] == ["talk_s1.wav", "talk_s2.wav"]
    assert told["gains"] == pytest.approx(expected.gains.tolist(), rel=1e-5)
    assert told["scores"] is None and told["predicted_si_sdr_db"] is None
    assert (report.separated, report.already_done, report.failed) == (1, 0, {})


def test_a_tree_keeps_its_shape_and_equal_names_stay_apart(tmp_path, separator):
    for name in ("a/x.wav", "b/x.wav", "b/deep/x.flac"):
        record(tmp_path / "in" / name)
    separate_files([tmp_path / "in"], separator, tmp_path / "tree")
    assert {"a/x_s1.wav", "b/x_s1.wav", "b/deep/x_s2.wav"} <= set(files_of(tmp_path / "tree"))
    named = [tmp_path / "in/a/x.wav", tmp_path / "in/b/x.wav", tmp_path / "in/./a/x.wav"]
    assert separate_files(named, separator, tmp_path / "named").separated == 2
    assert {"a/x_s1.wav", "b/x_s1.wav"} <= set(files_of(tmp_path / "named"))
    separate_files([tmp_path / "in/a", tmp_path / "in/b"], separator, tmp_path / "folders")
    assert {"a/x_s1.wav", "b/x_s1.wav", "deep/x_s1.wav"} <= set(files_of(tmp_path / "folders"))


@pytest.mark.parametrize("weaker", [1.0, 0.9])
def test_the_loudest_of_channels_that_cancel_is_separated_and_named(tmp_path, separator, chunked, weaker):
    voice = np.random.default_rng(0).standard_normal(16000).astype(np.float32) / 8
    audio.write(tmp_path / "in" / "inverted.wav", np.stack([-weaker * voice, voice]), 8000)
    audio.write(tmp_path / "alone.wav", -voice if weaker == 1 else voice, 8000)
    for number, model in enumerate((separator, chunked)):
        out = tmp_path / str(number)
        report = separate_files([tmp_path / "in", tmp_path / "alone.wav"], model, out)
        assert "the channels cancel in their mean" in report.summaries["inverted"]
        assert "cancel" not in report.summaries["alone"]
        told = json.loads((out / "inverted.json").read_text())
        assert told["channel"] is None and told["channel_taken"] == (0 if weaker == 1 else 1)
        for k in (1, 2):
            expected, found = audio.read(out / f"alone_s{k}.wav"), audio.read(out / f"inverted_s{k}.wav")
            np.testing.assert_array_equal(found, expected)
        assert separate_files([tmp_path / "in"], model, out).already_done == 1
        named = separate_files([tmp_path / "in"], model, out, OutputOptions(channel=1))
        assert "cancel" not in named.summaries["inverted"]


def test_the_same_command_continues(tmp_path, separator):
    for name in ("x", "y", "z"):
        record(tmp_path / "in" / f"{name}.wav")
    out = tmp_path / "out"
    separate_files([tmp_path / "in"], separator, out)
    for name in ("y.json", "y_s1.wav", "y_s2.wav"):
        (out / name).unlink()
    (out / "z_s2.wav").unlink()
    before = (out / "x_s1.wav").stat().st_mtime_ns
    report = separate_files([tmp_path / "in"], separator, out)
    assert (report.separated, report.already_done) == (2, 1)
    assert (out / "x_s1.wav").stat().st_mtime_ns == before and (out / "z_s2.wav").exists()


def wav_of_rate(path, rate, num_samples=400):
    """A wav whose header claims a rate."""
    record(path, num_samples)
    data = bytearray(path.read_bytes())
    data[24:28] = struct.pack("<I", rate)
    path.write_bytes(data)


def test_one_bad_file_never_stops_a_folder(tmp_path, separator):
    folder = tmp_path / "in"
    record(folder / "good.wav")
    record(folder / os.fsdecode(b"caf\xe9.wav"))
    record(folder / f"{'n' * 240}.wav")
    record(folder / f"{'m' * 251}.wav")
    record(folder / "rate.wav", 4000, 700_000)
    wav_of_rate(folder / "two\nlines.wav", 5, 1800)
    for rate in (1, 999, 768_001, 2**31 - 1):
        wav_of_rate(folder / f"claims_{rate}.wav", rate, 1800)
    os.mkfifo(folder / "pipe.wav")
    told, inputs, flac = [], [folder, folder / "pipe.wav"], OutputOptions(format="flac")
    report = separate_files(inputs, separator, tmp_path / "out", flac, tell=lambda *line: told.append(line))
    reasons = {Path(name).stem[:12]: reason for name, reason in report.failed.items()}
    claims = {"claims_1", "claims_999", "claims_76800", "claims_21474"}
    assert set(reasons) == claims | {"pipe", "rate", "two\nlines"}, reasons
    assert all("expected 1000 to 768000" in reason for name, reason in reasons.items() if "claims" in name)
    assert "is a pipe" in reasons["pipe"]
    # A name too long for what is appended to it is shortened, with a digest.
    assert len([path for path in (tmp_path / "out").iterdir() if path.name.startswith("m" * 200 + "_")]) >= 2
    assert "flac contains no 1 channel(s) at 700000 Hz" in reasons["rate"]
    assert report.separated == 4
    assert separate_files([folder], separator, tmp_path / "out", flac).already_done == 4
    failed = [json.loads(line) for line in (tmp_path / "out" / "failed.jsonl").read_text().splitlines()]
    assert len(failed) == 7
    assert all(line.count("\n") == (not failed) for line, failed in told)
    assert [line for line, failed in told if failed] == list(report.failed.values()) and len(told) == 11
    assert "\n" not in reasons["two\nlines"] and "two lines.wav" in reasons["two\nlines"]


def test_any_exception_of_a_recording_leaves_the_others(tmp_path, separator):
    """Two samples at 8 kHz, or whatever else nobody has thought of."""
    for number, name in enumerate("abc"):
        record(tmp_path / "in" / f"{name}.wav", 400 + number)
    broken = copy.copy(separator)
    broken.separate_recording = partial(_break_down_at, separator, tmp_path / "in" / "b.wav")
    report = separate_files([tmp_path / "in"], broken, tmp_path / "out")
    assert report.separated == 2 and list(report.failed) == [str(tmp_path / "in" / "b.wav")]
    (row,) = map(json.loads, (tmp_path / "out" / "failed.jsonl").read_text().splitlines())
    assert row["reason"].endswith("b.wav: failed: KeyError: 'nobody thought of it'")
    written = [f"{name}{end}" for name in "ac" for end in (".json", "_s1.wav", "_s2.wav")]
    assert files_of(tmp_path / "out") == [*written, "failed.jsonl"]


def _break_down_at(separator, path, recording, **options):
    if recording.path == path:
        raise KeyError("nobody thought of it")
    return separator.separate_recording(recording, **options)


def test_bad_recordings_are_listed_and_the_rest_goes_on(tmp_path, separator):
    folder, out = tmp_path / "in", tmp_path / "out"
    record(folder / "good.wav")
    record(folder / "long.flac", 40000)
    data = (folder / "long.flac").read_bytes()
    (folder / "truncated.flac").write_bytes(data[: len(data) // 3])
    (folder / "text.wav").write_text("no audio")
    audio.write(folder / "empty.wav", np.zeros(0, np.float32), 8000)
    (folder / "nan.wav").write_bytes((folder / "good.wav").read_bytes()[:-4] + np.float32("nan").tobytes())
    report = separate_files([folder], separator, out)
    assert report.separated == 2
    bad = ["empty.wav", "nan.wav", "text.wav", "truncated.flac"]
    assert sorted(Path(path).name for path in report.failed) == bad
    lines = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
    assert sorted(Path(line["input"]).name for line in lines) == bad
    assert all("\n" not in line["reason"] and line["input"] in line["reason"] for line in lines)
    assert "4 files failed" in str(report) and not list(out.glob("nan*"))
    for name in bad:
        (folder / name).unlink()
    assert separate_files([folder], separator, out).already_done == 2
    assert not (out / "failed.jsonl").exists()


def test_one_channel(tmp_path, separator):
    waveform = record(tmp_path / "x.wav", channels=3)
    separate_files([tmp_path / "x.wav"], separator, tmp_path / "out", OutputOptions(channel=2))
    expected = separator.separate(waveform[2], 8000).estimates
    np.testing.assert_allclose(audio.read(tmp_path / "out" / "x_s1.wav"), expected[0], atol=1e-6)
    report = separate_files([tmp_path / "x.wav"], separator, tmp_path / "out", OutputOptions(channel=3))
    assert "channel 3" in next(iter(report.failed.values()))


def test_an_unwritable_output_folder(tmp_path, separator):
    record(tmp_path / "x.wav")
    (tmp_path / "out").mkdir(mode=0o500)
    separate = partial(separate_files, [tmp_path / "x.wav"], separator, tmp_path / "out")
    as_ordinary_user(lambda: complaint(separate, "cannot be written to"))


# ------------------------------------------------------------------------------------------- unknown number of speakers


@pytest.fixture
def scored():
    model = build_model(replace(RECURRENT, hypotheses=3))
    model.scoring_head = Scores([1.0, -1.0, 0.5])
    return Separator(model)


def test_speakers_kept_are_numbered_and_described(tmp_path, scored):
    waveform, out = record(tmp_path / "x.wav", 4000), tmp_path / "out"
    everything = scored.separate(waveform, 8000)
    separate_files([tmp_path / "x.wav"], scored, out, OutputOptions(speakers="auto"))
    told = json.loads((out / "x.json").read_text())
    kept = np.flatnonzero(everything.is_speaker)
    assert told["kept_hypotheses"] == (kept + 1).tolist() and told["scores"] == [1.0, -1.0, 0.5]
    assert (told["speakers_option"], told["score_threshold"]) == ("auto", 0.0)
    for number, index in enumerate(kept, start=1):
        np.testing.assert_allclose(audio.read(out / f"x_s{number}.wav"), everything.estimates[index], atol=1e-6)


def test_fewer_speakers_than_before_leave_no_wavs_behind(tmp_path, scored):
    record(tmp_path / "x.wav", 4000)
    record(tmp_path / "out" / "x_s9.wav")
    wavs = {}
    for speakers in (None, 2, 1, None):
        report = separate_files([tmp_path / "x.wav"], scored, tmp_path / "out", OutputOptions(speakers=speakers))
        assert report.separated == 1
        wavs[speakers] = [name for name in files_of(tmp_path / "out") if name.endswith(".wav")]
        again = separate_files([tmp_path / "x.wav"], scored, tmp_path / "out", OutputOptions(speakers=speakers))
        assert again.already_done == 1
    # Files that sepkit did not write stay.
    assert wavs[1] == ["x_s1.wav", "x_s9.wav"] and wavs[2] == ["x_s1.wav", "x_s2.wav", "x_s9.wav"]
    assert wavs[None] == ["x_s1.wav", "x_s2.wav", "x_s3.wav", "x_s9.wav"]


def test_silence_has_a_description_and_no_wavs(tmp_path, scored):
    audio.write(tmp_path / "x.wav", np.zeros(1000, np.float32), 8000)
    for done in (0, 1):
        report = separate_files([tmp_path / "x.wav"], scored, tmp_path / "out", OutputOptions(speakers="auto"))
        assert (report.separated, report.already_done) == (1 - done, done)
    assert files_of(tmp_path / "out") == ["x.json"]


# ------------------------------------------------------------------------------------------ long, formats, many at once


@pytest.mark.parametrize("sample_rate", [8000, 11025])
def test_long_files_are_separated_as_arrays_are(tmp_path, chunked, sample_rate):
    waveform = record(tmp_path / "x.wav", 3 * sample_rate + 1, sample_rate)
    expected = chunked.separate(waveform, sample_rate)
    separate_files([tmp_path / "x.wav"], chunked, tmp_path / "out", OutputOptions(rttm=True))
    assert files_of(tmp_path / "out") == ["x.json", "x.rttm", "x_s1.wav", "x_s2.wav"]
    for index, estimate in enumerate(expected.estimates, start=1):
        np.testing.assert_allclose(audio.read(tmp_path / "out" / f"x_s{index}.wav"), estimate, atol=1e-6)
    told = json.loads((tmp_path / "out" / "x.json").read_text())
    assert (told["num_samples"], told["sample_rate"]) == (len(waveform), sample_rate)
    assert told["gains"] == pytest.approx(expected.gains.tolist(), rel=1e-5)
    assert separate_files([tmp_path / "x.wav"], chunked, tmp_path / "out", OutputOptions(rttm=True)).already_done == 1


@pytest.mark.parametrize("seconds", [0.5, 2.5])
@pytest.mark.parametrize("sample_rate", [8000, 44100])
def test_estimates_add_up_to_the_mixture(tmp_path, seconds, sample_rate):
    options = {"chunk_seconds": 0.5, "overlap_seconds": 0.2, "whole_seconds": 1.0}
    separator = Separator(build_model(RECURRENT), mixture_consistency=True, **options)
    waveform = record(tmp_path / "x.wav", round(seconds * sample_rate) + 3, sample_rate)
    separate_files([tmp_path / "x.wav"], separator, tmp_path / "out")
    np.testing.assert_allclose(sum(audio.read(tmp_path / "out" / f"x_s{k}.wav") for k in (1, 2)), waveform, atol=1e-6)


@pytest.mark.parametrize("num_samples", [1, 2, 800, 8000])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24"])
def test_short_files_of_few_and_many_bits(tmp_path, separator, num_samples, subtype):
    samples = 0.1 * np.random.default_rng(0).standard_normal(num_samples)
    soundfile.write(tmp_path / "x.wav", samples, 8000, subtype=subtype)
    report = separate_files([tmp_path / "x.wav"], separator, tmp_path / "out", OutputOptions(rttm=True))
    assert report.separated == 1 and audio.info(tmp_path / "out" / "x_s2.wav").num_samples == num_samples


def test_a_file_that_changes_while_it_is_read(tmp_path, chunked, monkeypatch):
    for name, seconds in (("short", 0.5), ("long", 2)):
        record(tmp_path / "in" / f"{name}.wav", round(seconds * 8000))
    read, blocks = audio.read, audio.read_blocks

    def grow(function, path, *args, **kwargs):
        found = list(function(path, *args, **kwargs))
        with open(path, "ab") as file:
            file.write(b"more")
        return found

    monkeypatch.setattr(audio, "read", lambda *args, **kwargs: np.array(grow(read, *args, **kwargs)))
    monkeypatch.setattr(audio, "read_blocks", lambda *args, **kwargs: iter(grow(blocks, *args, **kwargs)))
    report = separate_files([tmp_path / "in"], chunked, tmp_path / "out")
    assert len(report.failed) == 2 and all("changed while it was read" in reason for reason in report.failed.values())
    assert files_of(tmp_path / "out") == ["failed.jsonl"]


def test_ranks_share_the_files_and_the_last_sums_up(tmp_path, separator):
    for name in "abc":
        record(tmp_path / "in" / f"{name}.wav")
    (tmp_path / "in" / "d.wav").write_text("no audio")
    path, out = tmp_path / "sum.json", tmp_path / "out"
    for rank, expected in enumerate([(2, 0), (1, 1)]):
        report = separate_files([tmp_path / "in"], separator, out, rank=rank, world_size=2)
        assert (report.separated, len(report.failed)) == expected
        write_json(tmp_path / f"sum.json.rank{rank}", report.to_plain() | {"world_size": 2})
        merge_summaries(path, 2)
        assert path.exists() == (rank == 1)
    total = json.loads(path.read_text())
    assert (total["n_recordings"], total["n_separated"], total["n_failed"]) == (4, 3, 1)
    assert total["audio_seconds"] == pytest.approx(3 * 400 / 8000) and total["real_time_factor"] > 0
    assert (out / "failed_rank1.jsonl").exists() and not (out / "failed_rank0.jsonl").exists()
    assert separate_files([tmp_path / "in"], separator, out).already_done == 3


@pytest.mark.slow
def test_processes_do_as_one_does(tmp_path, separator):
    for name in "abcd":
        record(tmp_path / "in" / f"{name}.wav")
    (tmp_path / "in" / "bad.wav").write_text("no audio")
    one = separate_files([tmp_path / "in"], separator, tmp_path / "one")
    two = separate_files([tmp_path / "in"], separator, tmp_path / "two", processes=2)
    assert (two.separated, list(two.failed)) == (one.separated, list(one.failed)) == (4, [str(tmp_path / "in/bad.wav")])
    for name in files_of(tmp_path / "one"):
        if name.endswith(".wav"):
            by_one, by_two = (audio.read(tmp_path / folder / name) for folder in ("one", "two"))
            np.testing.assert_allclose(by_one, by_two, atol=1e-6)
