from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sepkit.config import DynamicMixingConfig
from sepkit.data import audio
from sepkit.data.dynamic_mixing import DynamicMixer
from sepkit.data.manifest import Manifest, MixtureEntry, NoiseEntry, SourceEntry
from sepkit.data.mixing import Mixed
from sepkit.signals import active_level
from tests.complaint import complaint

RATE = 8000


def draws(mixer: DynamicMixer, count: int = 40) -> list[Mixed]:
    return [mixer.mix(np.random.default_rng([5, index])) for index in range(count)]


def level_db(waveform: np.ndarray) -> float:
    return 20 * np.log10(np.sqrt(np.mean(waveform.astype(np.float64) ** 2)))


@pytest.fixture
def steady(tmp_path: Path) -> Manifest:
    """Speakers "0" to "3", each a sine of its own frequency and level; levels are equal with the manifest's gains."""
    entries = []
    for speaker in range(4):
        sine = 0.1 * (speaker + 1) * np.sin(2 * np.pi * 250 * (speaker + 1) * np.arange(8000) / RATE)
        audio.write(tmp_path / f"{speaker}.wav", sine.astype(np.float32), RATE)
    for first in range(4):
        sources = [SourceEntry(f"{s}.wav", speaker=str(s), gain=0.5 / (s + 1)) for s in (first, (first + 1) % 4)]
        entries.append(MixtureEntry(f"m{first}", RATE, 8000, sources))
    return Manifest(tmp_path / "train.jsonl", entries)


def speaker_of(source: np.ndarray) -> int:
    """Return which sine it is."""
    spectrum = np.abs(np.fft.rfft(source * np.hanning(len(source))))
    return round(np.argmax(spectrum) * RATE / len(source) / 250) - 1


def test_mixture_is_the_sum_and_speakers_differ(steady: Manifest) -> None:
    pairs: Counter[frozenset[int]] = Counter()
    for mixed in draws(DynamicMixer(steady, DynamicMixingConfig(enabled=True), 4000), 150):
        np.testing.assert_array_equal(mixed.mixture, mixed.sources.sum(axis=0))
        assert mixed.sources.shape == (2, 4000) and mixed.noise is None
        pairs[frozenset(speaker_of(source) for source in mixed.sources)] += 1
    assert len(pairs) == 6 and all(len(pair) == 2 for pair in pairs)
    assert min(pairs.values()) > 8


def test_speakers_are_drawn_by_their_weights(steady: Manifest) -> None:
    config = DynamicMixingConfig(enabled=True, speaker_weights=["0=0", "[01]=3"], one_speaker_share=1)
    heard = Counter(speaker_of(mixed.sources[0]) for mixed in draws(DynamicMixer(steady, config, 4000), 400))
    # Weights 0, 3, 1 and 1: the first pattern that matches counts, and others have weight 1.
    assert set(heard) == {1, 2, 3}
    assert abs(heard[1] / 400 - 0.6) < 0.08


def test_gains_are_uniform_around_the_manifests_level(steady: Manifest) -> None:
    mixer = DynamicMixer(steady, DynamicMixingConfig(enabled=True, gain_range_db=2.5), 4000)
    manifest_db = level_db(0.5 * 0.1 * np.sqrt(0.5) * np.ones(10))
    levels = np.array([[level_db(source) - manifest_db for source in mixed.sources] for mixed in draws(mixer, 200)])
    assert np.abs(levels).max() < 2.55
    assert np.abs(levels.mean(axis=0)).max() < 0.4
    assert levels.std(axis=0) == pytest.approx([5 / np.sqrt(12)] * 2, rel=0.15)
    assert abs(np.corrcoef(levels.T)[0, 1]) < 0.2


def test_equal_gains_give_equal_levels(corpus: Manifest) -> None:
    for mixed in draws(DynamicMixer(corpus, DynamicMixingConfig(enabled=True, gain_range_db=0.0)), 10):
        levels = [active_level(source, RATE) for source in mixed.sources]
        assert levels[0] == pytest.approx(levels[1], rel=0.05)


@pytest.mark.parametrize("bank", [{}, {"bank_gib": 0.1, "bank_speeds": 3}], ids=["files", "bank"])
def test_it_is_a_function_of_the_generator(corpus: Manifest, bank: dict) -> None:
    config = DynamicMixingConfig(enabled=True, speed_range=0.05, overlap_probability=0.5, **bank)
    forwards = draws(DynamicMixer(corpus, config, 3000), 12)
    backwards = DynamicMixer(corpus, config, 3000)
    for index in reversed(range(12)):
        again = backwards.mix(np.random.default_rng([5, index]))
        np.testing.assert_array_equal(again.sources, forwards[index].sources)
    assert len({mixed.mixture.tobytes() for mixed in forwards}) == 12


@pytest.mark.parametrize(("mode", "expected"), [("min", 600), ("max", 900)])
def test_without_segments_the_mode_settles_the_length(tmp_path: Path, mode: str, expected: int) -> None:
    for name, count in {"a": 600, "b": 900}.items():
        audio.write(tmp_path / f"{name}.wav", np.full(count, 0.1, np.float32), RATE)
    sources = [SourceEntry("a.wav", "a"), SourceEntry("b.wav", "b")]
    manifest = Manifest(tmp_path / "m.jsonl", [MixtureEntry("x", RATE, 600, sources, mode=mode)])
    for mixed in draws(DynamicMixer(manifest, DynamicMixingConfig(enabled=True)), 5):
        assert mixed.mixture.shape == (expected,)
        assert sorted(int((source != 0).sum()) for source in mixed.sources) == [600, expected]
    assert draws(DynamicMixer(manifest, DynamicMixingConfig(enabled=True), 500), 1)[0].mixture.shape == (500,)


def test_speed_shifts_the_pitch(steady: Manifest) -> None:
    mixer = DynamicMixer(steady, DynamicMixingConfig(enabled=True, speed_range=0.1), 6000)
    ratios = []
    for mixed in draws(mixer, 60):
        for source in mixed.sources:
            spectrum = np.abs(np.fft.rfft(source * np.hanning(6000), 1 << 17))
            frequency = np.argmax(spectrum) * RATE / (1 << 17)
            ratios.append(frequency / (250 * round(frequency / 250)))
    assert min(ratios) == pytest.approx(0.9, abs=0.02) and max(ratios) == pytest.approx(1.1, abs=0.02)
    assert len({round(ratio, 3) for ratio in ratios}) > 20


def test_partial_overlap_starts_later_sources_within_the_first_half(steady: Manifest) -> None:
    mixer = DynamicMixer(steady, DynamicMixingConfig(enabled=True, overlap_probability=0.5), 4000)
    onsets = [int(np.argmax(np.abs(mixed.sources[1]) > 1e-3)) for mixed in draws(mixer, 100)]
    assert all(np.argmax(np.abs(mixed.sources[0]) > 1e-3) < 20 for mixed in draws(mixer, 20))
    late = [onset for onset in onsets if onset > 20]
    assert 30 < len(late) < 70 and max(late) <= 2020 and min(late) < 500


def test_noise_has_the_drawn_ratio_and_share(steady: Manifest, tmp_path: Path) -> None:
    noise_folder = tmp_path / "noise" / "deep"
    for name, count in {"long": 9000, "short": 700}.items():
        waveform = np.random.default_rng(0).uniform(-0.5, 0.5, count).astype(np.float32)
        audio.write(noise_folder / f"{name}.wav", waveform, RATE)
    options = {"noise": str(tmp_path / "noise"), "noise_probability": 0.7, "noise_snr_db": (3.0, 9.0)}
    config = DynamicMixingConfig(enabled=True, **options)
    noisy = [mixed for mixed in draws(DynamicMixer(steady, config, 4000), 120) if mixed.noise is not None]
    assert 66 < len(noisy) < 100
    ratios = []
    for mixed in noisy:
        speech = mixed.sources.sum(axis=0)
        np.testing.assert_array_equal(mixed.mixture, speech + mixed.noise)
        assert mixed.noise is not None and np.count_nonzero(mixed.noise) > 3900
        ratios.append(level_db(speech) - level_db(mixed.noise))
    assert 2.99 < min(ratios) < 4 and 8 < max(ratios) < 9.01


def test_noise_of_the_manifest_stays_where_no_other_is_given(steady: Manifest, tmp_path: Path) -> None:
    audio.write(tmp_path / "hum.wav", np.full(300, 0.25, np.float32), RATE)
    for entry in steady:
        entry.noise = NoiseEntry("hum.wav", gain=0.5)
    for mixed in draws(DynamicMixer(steady, DynamicMixingConfig(enabled=True), 4000), 5):
        np.testing.assert_array_equal(mixed.noise, np.full(4000, 0.125, np.float32))


def test_silent_noise_and_silent_speech_stay_finite(tmp_path: Path) -> None:
    for name in ("a", "b", "noise/n"):
        audio.write(tmp_path / f"{name}.wav", np.zeros(1000, np.float32), RATE)
    sources = [SourceEntry("a.wav", "a"), SourceEntry("b.wav", "b")]
    manifest = Manifest(tmp_path / "m.jsonl", [MixtureEntry("x", RATE, 1000, sources)])
    config = DynamicMixingConfig(enabled=True, noise=str(tmp_path / "noise"))
    for mixed in draws(DynamicMixer(manifest, config, 500), 3):
        assert not mixed.mixture.any() and mixed.noise is None


def test_targets_are_the_reverberant_sources(corpus: Manifest, tmp_path: Path) -> None:
    pytest.importorskip("pyroomacoustics", reason="pyroomacoustics is missing: pip install 'sepkit[reverb]'")
    dry_config = DynamicMixingConfig(enabled=True, gain_range_db=0.0)
    config = replace(dry_config, reverberation_probability=1.0, reverberation_cache=str(tmp_path))
    dry_config = DynamicMixingConfig(enabled=True, gain_range_db=0.0)
    wet = DynamicMixer(corpus, config, 3000).mix(np.random.default_rng(0))
    dry = DynamicMixer(corpus, dry_config, 3000).mix(np.random.default_rng(0))
    np.testing.assert_array_equal(wet.mixture, wet.sources.sum(axis=0))
    # A room's energy is one, so loudness stays about the same while the waveform does not.
    assert level_db(wet.sources[0]) == pytest.approx(level_db(dry.sources[0]), abs=3)
    assert abs(np.corrcoef(wet.sources[0], dry.sources[0])[0, 1]) < 0.9


def test_early_targets_leave_late_reverberation_to_the_noise(corpus: Manifest, tmp_path: Path) -> None:
    pytest.importorskip("pyroomacoustics", reason="pyroomacoustics is missing: pip install 'sepkit[reverb]'")
    config = DynamicMixingConfig(enabled=True, reverberation_probability=1.0, reverberation_cache=str(tmp_path))
    early_config = replace(config, reverberation_target="early")
    # Noise is as loud as it is beside all of the speech.
    audio.write(tmp_path / "noise" / "n.wav", np.random.default_rng(1).standard_normal(9000).astype(np.float32), 8000)
    noisy = [replace(c, noise=str(tmp_path / "noise"), noise_snr_db=(0.0, 0.0)) for c in (config, early_config)]
    first, second = (DynamicMixer(corpus, c, 3000).mix(np.random.default_rng(0)).mixture for c in noisy)
    np.testing.assert_allclose(first, second, atol=1e-6)
    everything = DynamicMixer(corpus, config, 3000).mix(np.random.default_rng(0))
    early = DynamicMixer(corpus, early_config, 3000).mix(np.random.default_rng(0))
    assert everything.noise is None and early.noise is not None
    np.testing.assert_allclose(early.mixture, everything.mixture, atol=1e-6)
    np.testing.assert_allclose(early.sources.sum(axis=0) + early.noise, early.mixture, atol=1e-6)
    assert -40 < level_db(early.noise) - level_db(early.mixture) < 0


def test_coloring_changes_the_spectrum_of_each_source_and_keeps_its_energy(corpus: Manifest) -> None:
    config = DynamicMixingConfig(enabled=True, coloring_db=3.0)
    plain = DynamicMixer(corpus, replace(config, coloring_db=0.0), 3000).mix(np.random.default_rng(0))
    colored = DynamicMixer(corpus, config, 3000).mix(np.random.default_rng(0))
    assert level_db(colored.sources[0]) == pytest.approx(level_db(plain.sources[0]), abs=1e-4)
    spectra = [np.abs(np.fft.rfft(mixed.sources[0])) ** 2 for mixed in (plain, colored)]
    bands_db = [[10 * np.log10(band.sum()) for band in np.array_split(spectrum, 8)] for spectrum in spectra]
    assert np.ptp(np.subtract(*bands_db)) > 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reverberation_target": "early"}, "reverberation_target: found early, which does nothing without"),
        ({"noise_probability": 0.5}, "noise_probability: found 0.5, which does nothing without"),
        ({"noise": "absent"}, "no such folder"),
        ({"noise": "."}, "no audio files"),
        *[({"speaker_weights": [w]}, "speaker_weights") for w in ("[=1", "1", "1=much", "1=-1", "1=inf", "[0123]=0")],
        ({"bank_gib": 0.1, "bank_speeds": 4}, "bank_speeds: found 4"),
        ({"highpass_hz": (400.0, 60.0)}, "highpass_hz: found 400.0 and 60.0, expected two rising numbers"),
    ],
)
def test_options_that_cannot_be_meant(options: dict, words: str, corpus: Manifest, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in complaint(lambda: DynamicMixer(corpus, DynamicMixingConfig(enabled=True, **options), 3000))


def test_a_range_may_be_one_value(corpus: Manifest) -> None:
    DynamicMixer(corpus, DynamicMixingConfig(enabled=True, highpass_hz=(200.0, 200.0)), 3000)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"sources": [SourceEntry("a.wav", "a"), SourceEntry("b.wav", "a")]},
            "names 1 speaker(s), but has mixtures of 2",
        ),
        ({"sources": [], "mixture": "m.wav"}, "names 0 speaker(s)"),
    ],
)
def test_manifests_that_nothing_can_be_mixed_of(fields: dict, words: str, tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "m.jsonl", [MixtureEntry("x", RATE, 10, **fields)])
    assert words in complaint(lambda: DynamicMixer(manifest, DynamicMixingConfig(enabled=True)))


def test_a_reverberant_segment_still_rings_from_before_it(tmp_path: Path) -> None:
    pytest.importorskip("pyroomacoustics", reason="pyroomacoustics is missing: pip install 'sepkit[reverb]'")
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        audio.write(tmp_path / f"{name}.wav", generator.uniform(-0.3, 0.3, 40000).astype(np.float32), RATE)
    sources = [SourceEntry("a.wav", "a"), SourceEntry("b.wav", "b")]
    manifest = Manifest(tmp_path / "m.jsonl", [MixtureEntry("x", RATE, 40000, sources)])
    config = DynamicMixingConfig(enabled=True, reverberation_probability=1.0, reverberation_cache=str(tmp_path / "r"))
    for mixed in draws(DynamicMixer(manifest, config, 2000), 3):
        # The first 4 ms of a convolution that begins in silence would be nearly empty.
        assert level_db(mixed.sources[0][:32]) > level_db(mixed.sources[0]) - 6


def test_parts_of_a_file_stay_within_their_bounds(tmp_path: Path) -> None:
    waveform = np.concatenate([np.full(1000, 0.1), np.full(1000, 0.2), np.full(1000, 0.3)]).astype(np.float32)
    audio.write(tmp_path / "long.wav", waveform, RATE)
    starts = {"a": 0, "b": 1000}
    sources = [SourceEntry("long.wav", who, start=start, num_samples=1000) for who, start in starts.items()]
    manifest = Manifest(tmp_path / "m.jsonl", [MixtureEntry("x", RATE, 1000, sources)])
    for mixed in draws(DynamicMixer(manifest, DynamicMixingConfig(enabled=True), 400), 20):
        for source in mixed.sources:
            assert len(np.unique(source)) == 1


def test_speakers_are_equally_likely_however_many_recordings_they_have(tmp_path: Path) -> None:
    amounts = {"a": 1, "b": 2, "c": 5}
    sources = []
    for speaker, amount in amounts.items():
        for take in range(amount):
            audio.write(tmp_path / f"{speaker}{take}.wav", np.full(50, 0.1, np.float32), RATE)
            sources.append(SourceEntry(f"{speaker}{take}.wav", speaker))
    entries = [MixtureEntry(f"{s.path}", RATE, 50, [sources[0], s]) for s in sources[1:]]
    mixer = DynamicMixer(Manifest(tmp_path / "m.jsonl", entries), DynamicMixingConfig(enabled=True))
    generator = np.random.default_rng(0)
    pairs = [mixer._draw_recordings(2, generator) for _ in range(1500)]
    speakers = Counter(recording.speaker for pair in pairs for recording in pair)
    assert all(900 < count < 1100 for count in speakers.values())
    takes = Counter(recording.path.name for pair in pairs for recording in pair if recording.speaker == "c")
    assert len(takes) == 5 and all(150 < count < 250 for count in takes.values())
    assert all(len({recording.speaker for recording in pair}) == 2 for pair in pairs)
    assert {recording.speaker for recording in mixer._draw_recordings(3, generator)} == {"a", "b", "c"}


def test_one_speaker_alone_has_his_share(steady: Manifest) -> None:
    mixer = DynamicMixer(steady, DynamicMixingConfig(enabled=True, one_speaker_share=0.3), 4000)
    counts = Counter(len(mixed.sources) for mixed in draws(mixer, 200))
    assert set(counts) == {1, 2} and 40 < counts[1] < 80


def test_channels_limit_sources_and_noise_alike_and_add_to_the_noise_alone(corpus: Manifest, tmp_path: Path) -> None:
    def mixed(**options) -> list:
        mixer = DynamicMixer(corpus, DynamicMixingConfig(enabled=True, **options), 4000)
        return [mixer.mix(np.random.default_rng(seed)) for seed in range(40)]

    plain = mixed()
    only_band = mixed(channel_probability=1.0, codec_probability=0.0, clipping_probability=0.0)
    with_codec = mixed(channel_probability=1.0, codec_probability=1.0, clipping_probability=0.0)
    for before, limited, coded in zip(plain, only_band, with_codec, strict=True):
        # The channel is drawn last, so that the speech is the same.
        assert np.linalg.norm(limited.mixture) == pytest.approx(np.linalg.norm(before.mixture), rel=1e-4)
        assert np.abs(limited.noise).max() < 1e-5 * np.abs(limited.mixture).max()
        np.testing.assert_allclose(limited.mixture, limited.sources.sum(0), atol=1e-6)
        error = coded.mixture - coded.sources.sum(0)
        np.testing.assert_allclose(coded.noise, error, atol=1e-6)
        assert np.square(error).sum() / np.square(coded.mixture).sum() > 1e-8
    assert 10 < sum(one.noise is None for one in mixed(channel_probability=0.5)) < 30


def test_speakers_take_turns_in_their_share(corpus: Manifest) -> None:
    def mixed(**options) -> list:
        mixer = DynamicMixer(corpus, DynamicMixingConfig(enabled=True, **options), 4000)
        return [mixer.mix(np.random.default_rng(seed)) for seed in range(60)]

    # One of two sources or both are silent at every sample, and what is left is the source without turns.
    alone = [not np.any((one.sources != 0).all(0)) for one in mixed(turns_probability=0.5)]
    assert 18 < sum(alone) < 42
    for turns, plain in zip(mixed(turns_probability=1.0), mixed(), strict=True):
        assert not np.any((turns.sources != 0).all(0))
        kept = turns.sources != 0
        np.testing.assert_array_equal(turns.sources[kept], plain.sources[kept])
        np.testing.assert_allclose(turns.mixture, turns.sources.sum(0), atol=1e-6)
        assert np.count_nonzero(np.diff(kept[0].astype(int))) <= 3 + np.count_nonzero(plain.sources == 0)
