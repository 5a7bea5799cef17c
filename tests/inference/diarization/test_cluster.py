"""`sepkit cluster` on noise-like voices: what it writes, and what it says of inputs that cannot be used."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.data.segments import Segment, read_segments, write_segments
from sepkit.errors import UserError
from sepkit.evaluation.diarization import diarization_errors, read_rttm
from sepkit.files import write_json
from sepkit.inference.batch.cluster import Speech, cluster_recordings
from sepkit.inference.batch.inputs import find_recordings
from sepkit.inference.diarization.segments import Source, SpeechSegment, group_estimates
from sepkit.models import build_model, save_model
from sepkit.reporting.clusters import read_embeddings
from sepkit.reporting.report import write_report
from tests.complaint import complaint
from tests.noise_voices import voice

RATE = 8000


def cluster(folder, encoder, out, *options: str) -> int:
    return main(["cluster", str(folder), "--speaker-encoder", str(encoder), "--out", str(out), *options])


@pytest.mark.parametrize("speakers", ["3", "auto"])
def test_a_meeting(meeting, encoder, tmp_path, speakers, capsys):
    assert cluster(meeting, encoder, tmp_path, "--speakers", speakers) == 0
    assert capsys.readouterr().out.strip().endswith(str(tmp_path))
    assert cluster(meeting, encoder, tmp_path, "--speakers", speakers, "--json") == 0
    assert json.loads(capsys.readouterr().out)["n_speakers"] == 3
    rows = read_segments(tmp_path / "segments.csv")
    assert {row.path for row in rows} == {"talk/meeting.wav"}
    # In order of first appearance.
    assert [rows[0].speaker, rows[-1].speaker] == ["speaker_1", "speaker_3"]
    assert all(0.3 < row.confidence <= 1 for row in rows if row.confidence is not None)
    found = read_rttm(tmp_path / "talk" / "meeting.rttm")["meeting"]
    assert diarization_errors({"a": [(0.0, 2.0), (5.0, 2.0)], "b": [(2.5, 2.0)], "c": [(7.5, 2.0)]}, found).rate < 0.05
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["n_speakers"], summary["n_recordings"], summary["n_skipped"]) == (3, 1, 0)
    assert 0 < summary["wall_seconds"] < 120
    assert (summary["counting"] is None) is (speakers == "3")
    if speakers == "auto":
        assert summary["counting"]["runner_up"] != 3


def test_one_speaker_is_an_answer(encoder, voices, tmp_path):
    summary = cluster_recordings([voices / "1"], tmp_path, encoder=str(encoder))
    assert summary["n_speakers"] == 1 and summary["counting"]["runner_up"] == 2


def test_segments_of_several_recordings_are_numbered():
    source = Source(Path("a"), (Path("a.wav"),), ("a.wav",))
    own = [SpeechSegment(0, 0.0, 1.5), SpeechSegment(1, 1.0, 1.5), SpeechSegment(1, 2.5, 1.0)]
    pairs, seconds, recordings = (speech := Speech([(source, own), (source, own)])).overlaps
    assert pairs.tolist() == [[0, 1], [3, 4]] and recordings.tolist() == [0, 1]
    assert seconds.tolist() == [0.5, 0.5] and speech.neighbors.tolist() == [[1, 2], [4, 5]]


@pytest.mark.parametrize("model", ["mean_mfcc", "mean_log_mel"])
def test_plain_spectra_to_compare(voices, tmp_path, model):
    cluster_recordings([voices], tmp_path, encoder=model, speakers=3)
    assert len({(row.path.split("/")[0], row.speaker) for row in read_segments(tmp_path / "segments.csv")}) == 3


def test_a_report_draws_voices_and_turns(meeting, encoder, tmp_path):
    out = tmp_path / "clusters"
    rows = [Segment("talk/meeting.wav", 0.0, 2.0, "a"), Segment("talk/meeting.wav", 2.5, 2.0, "b")]
    truth = write_segments(tmp_path / "truth.csv", rows)
    assert cluster(meeting, encoder, out, "--speakers", "3", "--reference", str(truth)) == 0
    assert json.loads((out / "summary.json").read_text())["scores"]["n_clusters"] == 3
    segments = read_embeddings(out / "embeddings.csv")
    rows = read_segments(out / "segments.csv")
    assert [s.speaker for s in segments] == [row.speaker for row in rows]
    places = {s.speaker: np.array([(o.x, o.y) for o in segments if o.speaker == s.speaker]) for s in segments}
    centers = np.stack([own.mean(0) for own in places.values()])
    nearest = np.linalg.norm(centers[:, None] - centers, axis=-1)[np.triu_indices(3, 1)].min()
    assert max(np.linalg.norm(own - own.mean(0), axis=1).max() for own in places.values()) < nearest
    page = write_report([out], tmp_path / "page.html").read_text()
    assert "clusters: embeddings" in page and "clusters: talk/meeting" in page and "speaker_3" in page
    (out / "embeddings.csv").write_text("recording,start_seconds,duration_seconds,speaker,x,y\nr,0,nan,s,0,0\n")
    with pytest.raises(UserError, match="line 2: duration_seconds: found 'nan', expected a number"):
        write_report([out], tmp_path / "page.html")
    (out / "embeddings.csv").write_text("recording,x\n")
    with pytest.raises(UserError, match="found no column start_seconds, duration_seconds, speaker, y; cluster again"):
        write_report([out], tmp_path / "page.html")


# ------------------------------------------------------------------------------------------------------------ separated


@pytest.fixture
def separated(tmp_path):
    """Estimates of one recording as `sepkit separate` leaves them: two speakers at once, who change places halfway."""
    first, second = (np.random.default_rng(k).standard_normal(2 * RATE).astype(np.float32) / 20 for k in (0, 1))
    smooth = np.convolve(second, np.ones(8) / 3, mode="same").astype(np.float32)
    gap = np.zeros(RATE // 2, np.float32)
    folder = tmp_path / "separated"
    audio.write(folder / "a_s1.wav", np.concatenate([first, gap, smooth]), RATE)
    audio.write(folder / "a_s2.wav", np.concatenate([smooth, gap, first]), RATE)
    write_json(folder / "a.json", {"estimates": ["a_s1.wav", "a_s2.wav"]})
    audio.write(folder / "other_s1.wav", first, RATE)
    return folder


def test_estimates_of_a_recording_belong_together(separated, tmp_path):
    audio.write(separated / "a_s3.wav", np.ones(80, np.float32), RATE)  # which a.json does not name
    found = [(str(s.name), s.relative) for s in group_estimates(find_recordings([separated], tmp_path / "out"))]
    assert found == [("a", ("a_s1.wav", "a_s2.wav")), ("a_s3", ("a_s3.wav",)), ("other_s1", ("other_s1.wav",))]


def test_speakers_who_speak_at_once_are_different(separated, encoder, tmp_path):
    (separated / "other_s1.wav").unlink()
    cluster_recordings([separated], tmp_path / "out", encoder=str(encoder), speakers=2)
    rows = read_segments(tmp_path / "out" / "segments.csv")
    for row in rows:
        at_once = [o for o in rows if o.path != row.path and abs(o.start_seconds - row.start_seconds) < 0.1]
        assert at_once and all(other.speaker != row.speaker for other in at_once)
    assert sorted(read_rttm(tmp_path / "out" / "a.rttm")["a"]) == ["speaker_1", "speaker_2"]


def test_what_is_left_of_a_voice_in_the_other_estimate_goes_to_its_speaker(encoder, tmp_path):
    turns = [voice(0, 2.0, 1), voice(1, 2.0, 2), voice(0, 2.0, 3)]
    talk = np.concatenate([np.concatenate([turn, np.zeros(RATE // 2, np.float32)]) for turn in turns])
    audio.write(tmp_path / "in" / "a_s1.wav", talk, RATE)
    audio.write(tmp_path / "in" / "a_s2.wav", 0.3 * talk, RATE)
    write_json(tmp_path / "in" / "a.json", {"estimates": ["a_s1.wav", "a_s2.wav"]})
    cluster_recordings([tmp_path / "in"], tmp_path / "out", encoder=str(encoder), speakers=2)
    found = read_rttm(tmp_path / "out" / "a.rttm")["a"]
    assert diarization_errors({"a": [(0.0, 2.0), (5.0, 2.0)], "b": [(2.5, 2.0)]}, found).rate < 0.05


# -------------------------------------------------------------------------------------------------------------- parts


def test_table_of_segments_reads_back(tmp_path):
    rows = [Segment("a b.wav", 0.5, 1.25, "anna", 0.75), Segment("c.wav")]
    assert read_segments(write_segments(tmp_path / "s.csv", rows)) == rows
    (tmp_path / "s.csv").write_text("path,start_seconds\nx.wav,-1\n")
    complaint(lambda: read_segments(tmp_path / "s.csv"), r"line 2: start_seconds is '-1'")
    (tmp_path / "s.csv").write_text("file\nx.wav\n")
    complaint(lambda: read_segments(tmp_path / "s.csv"), "found columns file, expected path")


# ----------------------------------------------------------------------------------------------------------- bad input


def test_recordings_that_cannot_be_used_are_left_out(meeting, encoder, tmp_path, capsys):
    bad = tmp_path / "bad"
    audio.write(bad / "silent.wav", np.zeros(RATE, np.float32), RATE)
    broken = audio.read(meeting / "talk" / "meeting.wav")
    broken[100] = np.nan
    soundfile.write(bad / "nan.wav", broken, RATE, subtype="FLOAT")
    # Names need not be UTF-8.
    good = os.fsdecode(b"caf\xe9")
    audio.write(bad / f"{good}.wav", np.nan_to_num(broken), RATE)
    with pytest.raises(SystemExit, match="1"):
        cluster(bad, encoder, tmp_path / "out", "--speakers", "3")
    lines = capsys.readouterr().err.strip().split("\n")
    assert len(lines) == 2 and "nan.wav" in lines[0] and "no speech" in lines[1]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["n_skipped"] == 2 and summary["n_recordings"] == 1
    assert (tmp_path / "out" / f"{good}.rttm").is_file()
    assert "caf\\udce9" in (tmp_path / "out" / "embeddings.csv").read_text()


def test_short_segments_are_counted_and_listed(encoder, tmp_path):
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32) / 10
    pause = np.zeros(RATE, np.float32)
    audio.write(tmp_path / "in" / "a.wav", np.concatenate([noise, pause, noise[: round(0.22 * RATE)], pause]), RATE)
    summary = cluster_recordings([tmp_path / "in"], tmp_path / "out", encoder=str(encoder), speakers=1)
    assert summary["n_short"] == 1 and summary["short"][0]["start_seconds"] == pytest.approx(2, abs=0.03)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--speakers", "99"], "--speakers: found 99 for 8 segments of speech"),
        (["--speakers", "0"], "--speakers: found 0"),
        (["--speaker-encoder", "mean_mfcc"], "give --speakers N"),
    ],
)
def test_one_line_for_what_cannot_be_done(meeting, encoder, tmp_path, options, line, capsys):
    assert cluster(meeting, encoder, tmp_path, *options) == 2
    error = capsys.readouterr().err.strip()
    assert line in error and "\n" not in error


def test_models_of_other_kinds(meeting, encoder, tmp_path, tiny_model_config, capsys):
    save_model(build_model(tiny_model_config), tmp_path / "separator")
    assert cluster(meeting, tmp_path / "separator", tmp_path / "out") == 2
    assert "expected speaker_encoder" in capsys.readouterr().err
    assert main(["separate", str(meeting), "--model", str(encoder), "--out", str(tmp_path / "out")]) == 2
    assert "found a model of kind 'speaker_encoder'" in capsys.readouterr().err


def test_nothing_heard_anywhere(encoder, tmp_path):
    audio.write(tmp_path / "in" / "a.wav", np.zeros(RATE, np.float32), RATE)
    with pytest.raises(UserError, match=r"no recording can be used; the first: .*a\.wav"):
        cluster_recordings([tmp_path / "in"], tmp_path / "out", encoder=str(encoder), speakers=1)
