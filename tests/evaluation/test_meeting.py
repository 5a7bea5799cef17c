"""Meetings: DER against pyannote.metrics, cpWER against all namings, and files from elsewhere."""

import json
import shlex
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.data.seglst import SpokenSegment, read_seglst, write_seglst
from sepkit.evaluation.diarization import diarization_errors
from sepkit.evaluation.meeting import evaluate_meetings
from sepkit.evaluation.transcripts import timed_lines, word_errors
from sepkit.limits import MEETING_WORDS
from tests.complaint import complaint

VOCABULARY = ["so", "it", "is", "not", "what", "we", "said"]


def random_turns(generator: np.random.Generator, speakers: int) -> dict[str, list[tuple[float, float]]]:
    """Turns of each speaker that do not overlap their own."""
    found = {}
    for number in range(speakers):
        edges = np.sort(generator.uniform(0, 60, 2 * int(generator.integers(1, 8)))).reshape(-1, 2)
        found[f"p{number}"] = [(float(start), float(end - start)) for start, end in edges]
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("collar", [0.0, 0.25])
def test_der_is_that_of_pyannote(seed: int, collar: float) -> None:
    core = pytest.importorskip("pyannote.core", reason="pyannote.metrics takes Python 3.11")
    from pyannote.metrics.diarization import DiarizationErrorRate

    generator = np.random.default_rng(seed)
    turns = [random_turns(generator, int(generator.integers(1, 5))) for _ in range(2)]
    annotations = []
    for own in turns:
        annotation = core.Annotation()
        for speaker, spoken in own.items():
            for number, (start, length) in enumerate(spoken):
                annotation[core.Segment(start, start + length), f"{speaker}{number}"] = speaker
        annotations.append(annotation)
    # pyannote's collar is the width of what is left out around an end, ours half of it.
    everywhere = core.Timeline([core.Segment(-10, 100)])
    oracle = DiarizationErrorRate(collar=2 * collar)(*annotations, uem=everywhere, detailed=True)
    found = diarization_errors(*turns, collar)
    assert found.rate == pytest.approx(oracle["diarization error rate"], abs=1e-9)
    assert found.missed == pytest.approx(oracle["missed detection"], abs=1e-6)
    assert found.confused == pytest.approx(oracle["confusion"], abs=1e-6)


def spoken(generator: np.random.Generator, speakers: int) -> list[SpokenSegment]:
    segments = []
    for number in range(speakers):
        start = 0.0
        for _ in range(3):
            said = " ".join(generator.choice(VOCABULARY, int(generator.integers(1, 6))))
            segments.append(SpokenSegment("m", f"p{number}", start, start + 2.0, said))
            start += 2.5
    return segments


def texts(segments: list[SpokenSegment]) -> list[list[str]]:
    names = sorted({segment.speaker for segment in segments})
    return [" ".join(s.words or "" for s in segments if s.speaker == name).split() for name in names]


@pytest.mark.parametrize("seed", range(4))
def test_cpwer_is_the_least_of_all_namings(seed: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(seed)
    reference, hypothesis = spoken(generator, 3), spoken(generator, 2 + seed % 3)
    write_seglst(tmp_path / "reference.json", reference)
    write_seglst(tmp_path / "hypothesis.json", hypothesis)
    summary = evaluate_meetings(tmp_path / "reference.json", [tmp_path / "hypothesis.json"], tmp_path / "out")
    for name, segments in (("reference", reference), ("hypothesis", hypothesis)):
        write_seglst(tmp_path / f"{name}.json", [segments[k] for k in generator.permutation(len(segments))])
    shuffled = evaluate_meetings(tmp_path / "reference.json", [tmp_path / "hypothesis.json"], tmp_path / "again")
    assert all(shuffled[name] == summary[name] for name in ("cpwer", "tcpwer", "der"))
    said, heard = texts(reference), texts(hypothesis)
    size = max(len(said), len(heard))
    said, heard = said + [[]] * (size - len(said)), heard + [[]] * (size - len(heard))
    best = min(sum(map(word_errors, said, order)) for order in permutations(heard))
    assert summary["cpwer"] == pytest.approx(best / sum(map(len, said)))
    assert summary["tcpwer"] >= summary["cpwer"]
    assert json.loads((tmp_path / "out/summary.json").read_text())["cpwer"] == summary["cpwer"]


def test_words_at_another_time_count_for_cpwer_alone(tmp_path: Path) -> None:
    """Also, case and punctuation do not count."""
    write_seglst(tmp_path / "r.json", [SpokenSegment("m", "anna", 0.0, 1.0, "So, it is")])
    for start, expected in ((3.0, 0.0), (30.0, 2.0)):
        write_seglst(tmp_path / "h.json", [SpokenSegment("m", "1", start, start + 1, "so it IS")])
        summary = evaluate_meetings(tmp_path / "r.json", [tmp_path / "h.json"], tmp_path / "out")
        assert (summary["cpwer"], summary["tcpwer"]) == (0.0, expected)


def test_meetings_count_by_their_words_and_those_nobody_heard_count_too(tmp_path: Path) -> None:
    reference = [SpokenSegment(name, "anna", 0.0, 1.0, words) for name, words in (("a", "so it is"), ("b", "no"))]
    write_seglst(tmp_path / "r.json", reference)
    write_seglst(tmp_path / "h.json", [reference[0], SpokenSegment("c", "anna", 0.0, 1.0, "no")])
    summary = evaluate_meetings(tmp_path / "r.json", [tmp_path / "h.json"], tmp_path / "out")
    assert summary["cpwer"] == 0.25 and summary["der"] == 0.5
    assert [summary["recordings"][name]["cpwer"] for name in "ab"] == [0.0, 1.0]
    assert (summary["missing"], summary["not_in_reference"]) == (["b"], ["c"])


def write_tracks(folder: Path) -> list[Path]:
    """Two tracks, heard from 0 to 1 s and from 2 to 3 s."""
    noise = 0.1 * np.random.default_rng(0).standard_normal(8000).astype(np.float32)
    silence = np.zeros(8000, np.float32)
    waves = [np.concatenate([noise, silence, silence]), np.concatenate([silence, silence, noise])]
    return [audio.write(folder / f"talk_s{k}.wav", wave, 8000) for k, wave in enumerate(waves, 1)]


def test_tracks_are_heard_and_transcribed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints cues where a track is heard; a second call takes what it printed before."""
    code = (
        "import sys; from sepkit.data import audio; import numpy as np; x = np.abs(audio.read(sys.argv[1])) > 0; "
        f"open({str(tmp_path / 'calls')!r}, 'a').write('x'); print('Detected language: English'); "
        "print('[00:00.000 --> 00:01.000]  So it is.' if x[0] else '[00:02.000 --> 00:03.000]  It is not!')"
    )
    said = [("anna", 0.0, 1.0, "so it is"), ("bob", 2.0, 3.0, "it is not")]
    write_seglst(tmp_path / "truth.json", [SpokenSegment("talk", *turn) for turn in said])
    words = ["evaluate", "--meeting", "--reference", tmp_path / "truth.json", "--hypothesis", *write_tracks(tmp_path)]
    words += ["--out", tmp_path / "out", "--asr-command", shlex.join([sys.executable, "-c", code]) + " {wav}"]
    for _ in range(2):
        assert main(list(map(str, words))) == 0
        assert "cpWER 0.0 %, tcpWER 0.0 % (collar 5 s), of 6 words" in capsys.readouterr().out
    assert (tmp_path / "calls").read_text() == "xx"
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["der"] == pytest.approx(0, abs=0.03) and summary["tcpwer"] == 0
    heard = [(s.speaker, s.start_seconds, s.words) for s in read_seglst(tmp_path / "out/hypothesis.json")]
    assert heard == [("talk_s1", 0.0, "So it is."), ("talk_s2", 2.0, "It is not!")]
    assert (tmp_path / "out/hypothesis.rttm").read_text().startswith("SPEAKER talk 1 0.000 1.0")


def test_a_plain_transcript_has_cpwer_alone(tmp_path: Path) -> None:
    write_seglst(tmp_path / "truth.json", [SpokenSegment("talk", "anna", 0.0, 1.0, "so it is")])
    command = shlex.join([sys.executable, "-c", "print('so it')"])
    summary = evaluate_meetings(tmp_path / "truth.json", write_tracks(tmp_path)[:1], tmp_path / "out", command)
    assert summary["cpwer"] == pytest.approx(1 / 3) and "tcpwer" not in summary and "der" in summary


WHISPER = "[00:00:01.000 --> 00:00:03.500]   So it is.\n[01:00:00.000 --> 01:00:01.000]   No."
SRT = "1\n00:00:01,000 --> 00:00:03,500\nSo\nit is.\n\n2\n01:00:00,000 --> 01:00:01,000\nNo.\n"


@pytest.mark.parametrize("transcript", [WHISPER, SRT, f"WEBVTT\n\n{SRT}"], ids=["whisper", "srt", "vtt"])
def test_cues_of_real_tools(transcript: str) -> None:
    assert timed_lines(transcript) == [(1.0, 3.5, "So it is."), (3600.0, 3601.0, "No.")]
    assert timed_lines("so it is\n") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"session_id": None}, "segment 1: session_id is None, expected a name"),
        ({"speaker": True}, "segment 1: speaker is True, expected a name"),
        ({"words": ["a"]}, "segment 1: words is .*, expected text"),
        ({"start_time": "soon"}, "segment 1: start_time is 'soon', expected seconds"),
        ({"end_time": float("nan")}, "segment 1: end_time is nan, expected seconds"),
        ({"end_time": 10**400}, "segment 1: end_time is .*, expected seconds"),
        ({"end_time": None}, "segment 1: found start_time 0.0 and end_time None, expected both"),
        ({"end_time": -1}, "segment 1: end_time is -1, expected seconds"),
        ({"words": "a " * (MEETING_WORDS + 1)}, "expected at most"),
    ],
    ids=str,
)
def test_segments_that_are_none(change: dict, message: str, tmp_path: Path) -> None:
    row = {"session_id": "a", "speaker": "b", "start_time": 0, "end_time": 1, "words": "c"} | change
    (tmp_path / "x.json").write_text(json.dumps([row]))
    complaint(lambda: read_seglst(tmp_path / "x.json"), message)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("r.json", "no.json"), "no.json"),
        (("r.json", "h.txt"), "h.txt"),
        (("r.txt", "h.json"), r"r.txt: unsupported extension, expected .rttm or"),
        (("empty.json", "h.json"), "empty.json: it contains no speech"),
        (("r.json", "other.json"), "r.json: names none of the meetings of .*other.json, such as 'x'"),
        (("r.json", "h.json", "talk_s1.wav"), "is a table beside audio files"),
        (("two.json", "talk_s1.wav"), "two.json: found 2 meetings, expected one"),
        (("r.json", "talk_s1.wav", "talk_s1.wav"), "two tracks of one name"),
        (("silent.json", "h.json"), "no words are said in it"),
        (("instant.json", "h.json"), "it contains no speech, expected turns longer"),
    ],
    ids=str,
)
def test_bad_files(files: tuple[str, ...], message: str, tmp_path: Path) -> None:
    turn, other = SpokenSegment("talk", "anna", 0.0, 1.0, "so"), SpokenSegment("x", "anna", 0.0, 1.0, "so")
    tables = {"r": [turn], "h": [turn], "empty": [], "other": [other], "two": [turn, other]}
    tables |= {"silent": [replace(turn, words="")], "instant": [replace(turn, start_seconds=1.0)]}
    for name, segments in tables.items():
        write_seglst(tmp_path / f"{name}.json", segments)
    write_tracks(tmp_path)
    reference, *found = (tmp_path / name for name in files)
    complaint(lambda: evaluate_meetings(reference, found, tmp_path / "out"), message)


def test_a_command_that_fails_is_named_with_its_track(tmp_path: Path) -> None:
    truth = write_seglst(tmp_path / "r.json", [SpokenSegment("talk", "anna", 0.0, 1.0, "so")])
    tracks = write_tracks(tmp_path)[:1]
    message = r"--asr-command: .*talk_s1.wav: no-such-command"
    complaint(lambda: evaluate_meetings(truth, tracks, tmp_path / "out", "no-such-command"), message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--meeting", "--reference", "r.json"], "--hypothesis: missing"),
        (["--reference", "r.json", "--hypothesis", "h.json"], "--meeting: missing"),
        (["--meeting", "--reference", "r", "--hypothesis", "h", "--model", "boxed_8k"], "--model: does not go with"),
        ([], "--manifest: found none"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together(words: list[str], message: str, refused) -> None:
    assert message in refused(["evaluate", "--out", "out", *words])
