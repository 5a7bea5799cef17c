"""What calibration hears beside mixtures: one speaker alone, and two in turn."""

from types import SimpleNamespace

import numpy as np
import pytest

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry
from sepkit.data.mixing import Mixed
from sepkit.inference import calibration
from sepkit.inference.calibration import Calibration, _chosen, _speech_of, _stress_mixtures, in_turns, overlapping
from sepkit.inference.quality.single_speaker import LabeledRecording

T = 400


def test_turns_and_overlaps_hold_all_of_both():
    one, two = np.arange(1.0, 8.0), -np.arange(1.0, 8.0)
    np.testing.assert_array_equal(in_turns((one, two), 3), [1, 2, 3, -1, -2, -3, 4, 5, 6, -4, -5, -6, 7, -7])
    np.testing.assert_array_equal(overlapping(one[:4], two[:4], 0.5), [1, 2, 2, 2, -3, -4])
    np.testing.assert_array_equal(overlapping(one[:2], two[:2], 0), [1, 2, -1, -2])


def entry(folder, name: str, *sources: tuple[str, str, float]) -> MixtureEntry:
    named = [SourceEntry(path=path, speaker=speaker, gain=gain) for path, speaker, gain in sources]
    return MixtureEntry(id=name, sample_rate=8000, num_samples=T, sources=named, folder=folder)


def test_a_speaker_is_heard_in_all_recordings_of_the_manifest(tmp_path):
    for name, level, length in (("a1", 0.5, 300), ("a2", 0.1, 200), ("b1", 0.3, 100)):
        audio.write(tmp_path / f"{name}.wav", np.full(length, level, np.float32), 8000)
    entries = [
        entry(tmp_path, "0", ("a1.wav", "a", 0.5), ("b1.wav", "b", 1.0)),
        entry(tmp_path, "1", ("b1.wav", "b", 1.0), ("a2.wav", "a", 1.0)),
        entry(tmp_path, "2", ("a1.wav", "", 1.0), ("a2.wav", "", 1.0)),
    ]
    # At the level of the source.
    np.testing.assert_allclose(_speech_of(entries, 0, 0, 10_000), np.full(500, 0.25), atol=1e-4)
    assert len(_speech_of(entries, 0, 0, 300)) == 300 and len(_speech_of(entries, 0, 1, 10_000)) == 100
    np.testing.assert_allclose(_speech_of(entries, 1, 1, 10_000), np.full(500, 0.1), atol=1e-4)
    # Without names nobody is known to be the same.
    assert len(_speech_of(entries, 2, 0, 10_000)) == 300
    assert _chosen([*entries, entry(tmp_path, "3", ("a1.wav", "a", 1.0))]) == [0, 1, 2]


def test_stress_mixtures_mixtures_have_louder_noise_or_more_speakers(tmp_path):
    generator = np.random.default_rng(0)
    for name in "abcd":
        audio.write(tmp_path / f"{name}.wav", 0.1 * generator.standard_normal(T).astype(np.float32), 8000)
    entries = [entry(tmp_path, pair, *((f"{who}.wav", who, 1.0) for who in pair)) for pair in ["ab", "bc", "cd", "ad"]]
    sources = np.stack([audio.read(tmp_path / f"{who}.wav") for who in "ab"])
    plain = Mixed(sources.sum(0), sources)
    # The first entry of which nobody is known has the third speaker.
    ((kind, more),) = _stress_mixtures(entries, 0, plain, 2)
    assert kind == "more speakers" and len(more.sources) == 3
    cosine = more.sources[2] @ audio.read(tmp_path / "c.wav")
    assert cosine / np.linalg.norm(more.sources[2]) / np.linalg.norm(audio.read(tmp_path / "c.wav")) > 0.999
    np.testing.assert_allclose(more.mixture, more.sources.sum(0), atol=1e-6)
    assert np.square(more.sources[2]).mean() == pytest.approx(np.square(sources.sum(0)).mean() / 2, rel=1e-3)
    noise = 0.01 * generator.standard_normal(T).astype(np.float32)
    (kind, loud), _ = _stress_mixtures(entries, 0, Mixed(sources.sum(0) + noise, sources), 2)
    added = loud.mixture - sources.sum(0)
    assert kind == "more noise" and np.corrcoef(added, noise)[0, 1] > 0.9999
    assert np.square(added).mean() == pytest.approx(np.square(sources.sum(0)).mean(), rel=1e-3)
    # Nobody else is there.
    assert list(_stress_mixtures(entries[:1], 0, plain, 2)) == []


@pytest.mark.parametrize(
    ("number", "most", "turn", "share"),
    [(0, 5, 2, 1.0), (1, 5, 2, 0.5), (2, 5, 3, 0.25), (4, 10, 5, 0.5), (6, 25, 8, 1.0), (8, 25, 2, 0.25)],
)
def test_what_is_heard_of_a_mixture(number, most, turn, share, tmp_path, monkeypatch):
    """One speaker, both in turn and both at once, in seconds; with noise if the mixture has some, and the noise."""
    rate, names = 1000, ("a", "b")
    voices = [np.linspace(0.1, 0.2, 30 * rate), np.linspace(-0.2, -0.1, 20 * rate)]
    for name, voice in zip(names, voices, strict=True):
        audio.write(tmp_path / f"{name}.wav", voice.astype(np.float32), rate)
    sources = [SourceEntry(path=f"{name}.wav", speaker=name, gain=1.0) for name in names]
    entries = [MixtureEntry("m", rate, 20 * rate, sources if k == number else [], folder=tmp_path) for k in range(9)]
    monkeypatch.setattr(calibration, "_run", lambda separator, recording, at: (recording, at))
    monkeypatch.setattr(calibration, "_labeled", lambda recording, at, *others: (recording, at, *others))
    both = np.stack([voice[: 20 * rate] for voice in voices]).astype(np.float32)
    noise = 0.01 * (-1.0) ** np.arange(20 * rate).astype(np.float32)
    plain, noisy = (
        calibration._measure_example(SimpleNamespace(sample_rate=7), entries, number, Mixed(mixture, both))
        for mixture in (both.sum(0), both.sum(0) + noise)
    )
    half, part = round(min(20, most / 2) * rate), round(min(20, most / (2 - share)) * rate)
    expected = [
        voices[0][: most * rate],
        in_turns((voices[0][:half], voices[1][:half]), turn * rate),
        overlapping(voices[0][:part].astype(np.float32), voices[1][:part].astype(np.float32), share),
    ]
    assert [row[1:] for row in plain] == [(rate, 7, 1, "a"), (rate, 7, 2, "a"), (rate, 7, 2, "a")]
    for found, with_noise, wanted in zip(plain, noisy, expected, strict=False):
        np.testing.assert_allclose(found[0], wanted, atol=1e-6)
        np.testing.assert_allclose(with_noise[0] - found[0], np.resize(noise, len(wanted)), atol=1e-6)
    assert noisy[3][1:] == (rate, 7, 0, "a") and len(noisy) == 4
    np.testing.assert_allclose(noisy[3][0], noise, atol=1e-6)


@pytest.mark.parametrize(("times", "views"), [((5.0, 3.9, 6.0), 2), ((5.0, 4.1, 6.0), 1)])
def test_two_views_where_a_hundredth_of_the_time_is_enough(times, views, monkeypatch):
    """Hundredths of a second for 4 s; the quickest of three calls counts."""
    clock = iter(np.cumsum([step for seconds in times for step in (1.0, seconds / 100)]))
    heard: list[tuple[int, ...]] = []
    monkeypatch.setattr(calibration, "time", SimpleNamespace(process_time=lambda: next(clock)))
    runner = SimpleNamespace(sample_rate=1000, run=lambda mixture: heard.append(mixture.shape))
    assert calibration.affordable_views(runner) == views and heard == [(1, 4000)] * 3


def test_a_kind_that_is_left_out_is_in_neither_fit(monkeypatch):
    """Three mixtures with two estimates each, and a recording of each kind."""
    measured = [(number, kind, False, ({"x": np.zeros(2)}, np.ones(2))) for number, kind in enumerate("aba")]
    labeled = [LabeledRecording({}, 1, kind=kind) for kind in "ab"]
    monkeypatch.setattr(calibration, "runner_fields", lambda runner: {})
    monkeypatch.setattr(calibration, "fit_quality", lambda *columns, **more: SimpleNamespace(kinds=[*columns[3]]))
    monkeypatch.setattr(calibration, "fit_single_speaker", lambda labeled, encoder: [one.kind for one in labeled])
    fitted = Calibration(SimpleNamespace(runner=None), "m", measured, labeled).fit("a")
    assert (fitted.kinds, fitted.single_speaker) == (["b", "b"], ["b"])
