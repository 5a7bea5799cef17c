import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import welch

from sepkit.cli.main import main
from sepkit.corpora.options import PulsesOptions
from sepkit.corpora.pulses import PulseParameters, conditions, pulse_noise, pulse_sources
from sepkit.corpora.pulses import prepare_pulses as _prepare_pulses
from sepkit.data import audio
from sepkit.data.dataset import MixtureDataset
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from tests.complaint import complaint
from tests.corpora.calling import by_place

prepare_pulses = by_place(_prepare_pulses, PulsesOptions, "out")
TINY = {"train_mixtures": 6, "dev_mixtures": 3, "test_mixtures": 4, "seconds": 0.5}
TRAINING = PulseParameters(seconds=0.5)


@pytest.fixture(scope="module")
def pulses(tmp_path_factory) -> Path:
    return prepare_pulses(tmp_path_factory.mktemp("pulses"), **TINY)


def indices_of(pulses: Path, name: str) -> list[int]:
    return [int(entry.id.rsplit("-", 1)[1]) for entry in read_manifest(pulses / f"{name}.jsonl")]


def test_indices_are_those_of_the_thesis(pulses, tmp_path):
    assert indices_of(pulses, "train") == list(range(100000, 100006))
    assert indices_of(pulses, "dev") == list(range(100006, 100009))
    manifests = {path.stem for path in pulses.glob("*.jsonl")}
    assert manifests == {"train", "dev", "test", *(f"test_{name}" for name in conditions())}
    for name in manifests - {"train", "dev"}:
        assert indices_of(pulses, name) == list(range(100009, 100013))
    other = prepare_pulses(tmp_path, **TINY, conditions=["noise_low"])
    assert {path.name for path in other.glob("test*.jsonl")} == {"test.jsonl", "test_noise_low.jsonl"}


@pytest.mark.parametrize("name", ["train", "dev", "test"])
def test_mixtures_are_what_the_index_says(pulses, name):
    dataset = MixtureDataset(pulses / f"{name}.jsonl")
    for example, index in zip((dataset[i] for i in range(len(dataset))), indices_of(pulses, name), strict=True):
        sources, noise = pulse_sources(index, TRAINING), pulse_noise(index, "white", TRAINING)
        np.testing.assert_array_equal(example.sources.numpy(), sources)
        np.testing.assert_allclose(example.mixture.numpy(), sources.sum(axis=0) + 0.5 * noise, atol=1e-6)
        assert example.active.all() and np.isfinite(example.mixture.numpy()).all()


@pytest.mark.parametrize("name", conditions())
def test_conditions_differ_in_one_thing(pulses, name):
    condition = conditions(TRAINING)[name]
    usual = read_manifest(pulses / "test.jsonl")
    for entry, index in zip(read_manifest(pulses / f"test_{name}.jsonl"), indices_of(pulses, "test"), strict=True):
        mixed = mix_entry(entry)
        sources = pulse_sources(index, condition.parameters)
        noise = pulse_noise(index, condition.noise, condition.parameters)
        np.testing.assert_array_equal(mixed.sources, sources)
        np.testing.assert_allclose(mixed.mixture, sources.sum(axis=0) + condition.noise_amplitude * noise, atol=1e-6)
        before = mix_entry(usual[index - indices_of(pulses, "test")[0]])
        same_noise = mixed.noise is not None and np.array_equal(mixed.noise, before.noise)
        assert np.array_equal(mixed.sources, before.sources) != same_noise


def test_conditions_are_those_of_appendix_m():
    found = conditions()
    assert [found[f"noise_{name}"].noise_amplitude for name in ("none", "low", "0_25", "0_75", "high")] == [
        0, 0.1, 0.25, 0.75, 1,
    ]  # fmt: skip
    assert {found[f"pulses_{count}"].parameters.pulses for count in (2, 4)} == {2, 4}
    assert [found[f"overtones_{name}"].parameters.overtones for name in ("none", "one_more", "twice")] == [0, 5, 8]
    widths = [found[f"widths_{name}"].parameters.sigma_range_seconds for name in ("any", "short", "long")]
    assert widths == [(0.01, 0.5), (0.01, 0.05), (0.3, 0.5)]
    assert found["frequencies_expanded"].parameters.frequency_ranges_hz == ((275, 425), (75, 225))
    gaps = []
    for name in ("expanded", "near", "overlapping"):
        (upper, _), (_, lower) = found[f"frequencies_{name}"].parameters.frequency_ranges_hz
        gaps.append(upper - lower)
    assert gaps[0] > gaps[1] > 0 > gaps[2]


def test_few_files_and_none_twice(pulses):
    """Two speakers and noise for train, dev and test, two speakers for each other kind of source, two more noises."""
    other_sources = sum(found.parameters != PulseParameters() for found in conditions().values())
    assert len(list(pulses.rglob("*.wav"))) == 3 * 3 + 2 * other_sources + 2 == 33
    header = audio.info(pulses / "wav" / "train_speaker0.wav")
    assert header.subtype == "FLOAT" and header.num_samples == 6 * 4000


def test_running_again_makes_nothing_again(pulses):
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in pulses.rglob("*.wav")}
    manifests = {path: path.read_bytes() for path in pulses.glob("*.jsonl")}
    victims = {pulses / "wav" / "test_speaker1.wav", pulses / "wav" / "test_noise_band_noise.wav"}
    for victim in victims:
        victim.unlink()
    prepare_pulses(pulses, **TINY)
    assert {path for path in before if path.stat().st_mtime_ns != before[path][1]} == victims
    after = {path: path.read_bytes() for path in pulses.rglob("*.wav")}
    assert after == {path: data for path, (data, _) in before.items()}
    assert {path: path.read_bytes() for path in pulses.glob("*.jsonl")} == manifests


def test_samples_do_not_depend_on_how_many_there_are(pulses, tmp_path):
    more = prepare_pulses(tmp_path, **(TINY | {"train_mixtures": 9}), conditions=[])
    few = MixtureDataset(pulses / "train.jsonl")
    many = MixtureDataset(more / "train.jsonl")
    assert all(few[i].mixture.equal(many[i].mixture) for i in range(6))
    # Indices that a larger training set takes are not in validation.
    assert indices_of(more, "dev")[0] == 100009


def test_conditions_can_be_added_later(tmp_path):
    prepare_pulses(tmp_path, **TINY, conditions=["noise_low"])
    prepare_pulses(tmp_path, **TINY, conditions=["widths_long"])
    assert {path.name for path in tmp_path.glob("test_*.jsonl")} == {"test_noise_low.jsonl", "test_widths_long.jsonl"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 3600.0, "train_mixtures": 100}, r"found 100 mixtures of 3600\.0 s, expected at most 37"),
        ({"conditions": ["noise_low", "loud"]}, "--conditions: found 'loud', expected any of noise_none, noise_low"),
    ],
)
def test_arguments_out_of_range(tmp_path, options, message):
    complaint(lambda: prepare_pulses(tmp_path / "out", **(TINY | options)), message)
    assert not (tmp_path / "out").exists()


def test_recordings_made_in_another_way_are_not_mixed_in(pulses):
    with pytest.raises(UserError, match=r"pulses\.json: made with dev_mixtures 3, not 4; choose another --out"):
        prepare_pulses(pulses, **(TINY | {"dev_mixtures": 4}))
    assert json.loads((pulses / "pulses.json").read_text())["dev_mixtures"] == 3


def test_from_the_command_line(tmp_path, capsys, refused):
    options = ["--train-mixtures", "2", "--dev-mixtures", "1", "--test-mixtures", "1", "--seconds", "0.2"]
    out = str(tmp_path / "out")
    assert main(["prepare", "pulses", "--out", out, *options, "--conditions", "noise_low", "noise_high"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == out
    names = {"train", "dev", "test", "test_noise_low", "test_noise_high"}
    assert {path.stem for path in Path(out).glob("*.jsonl")} == names
    error = refused(["prepare", "pulses", "--out", out, *options, "--conditions", "quiet"])
    assert error.startswith("sepkit prepare pulses: --conditions: found 'quiet'")


RATE = 8000
# One pulse of one speaker; only phase and center are unknown.
RANGES = {"amplitude_range": (0.7, 0.7), "sigma_range_seconds": (0.1, 0.1), "frequency_ranges_hz": ((250.0, 250.0),)}
SINGLE = PulseParameters(pulses=1, overtones=0, **RANGES)


def spectrum(waveform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies in Hz, and the magnitude at each."""
    return np.fft.rfftfreq(len(waveform), 1 / RATE), np.abs(np.fft.rfft(waveform.astype(np.float64)))


def inner_index(parameters: PulseParameters) -> int:
    """An example whose only pulse lies wholly in the segment."""
    for index in range(100):
        source = pulse_sources(index, parameters)[0]
        if np.abs(source[[0, -1]]).max() < 1e-6 and abs(np.argmax(np.abs(source)) - len(source) / 2) < len(source) / 4:
            return index
    raise AssertionError("no such example")


def test_an_index_is_a_function():
    sources = pulse_sources(100000)
    assert sources.shape == (2, 24000) and sources.dtype == np.float32
    np.random.seed(1)
    pulse_sources(5), pulse_noise(100000)
    np.testing.assert_array_equal(pulse_sources(100000), sources)
    assert np.abs(pulse_sources(100001) - sources).max() > 0.1
    np.testing.assert_array_equal(pulse_noise(7), pulse_noise(7))
    assert np.abs(pulse_noise(8) - pulse_noise(7)).max() > 0.1


def test_a_single_pulse_is_its_formula():
    """Frequency, amplitude, envelope and center, from the analytic signal."""
    from scipy.signal import hilbert

    source = pulse_sources(inner_index(SINGLE), SINGLE)[0].astype(np.float64)
    analytic = np.asarray(hilbert(source))
    envelope = np.abs(analytic)
    time = np.arange(len(source)) / RATE
    power = envelope**2
    center = (time * power).sum() / power.sum()
    # The square of a Gaussian of deviation s has the deviation s / sqrt(2).
    assert np.sqrt(2 * ((time - center) ** 2 * power).sum() / power.sum()) == pytest.approx(0.1, rel=1e-3)
    np.testing.assert_allclose(envelope, 0.7 * np.exp(-0.5 * ((time - center) / 0.1) ** 2), atol=1e-4)
    middle = np.abs(time - center) < 0.2
    cycles = np.unwrap(np.angle(analytic[middle])) / (2 * np.pi)
    assert np.polyfit(time[middle], cycles, 1)[0] == pytest.approx(250.0, abs=1e-3)


@pytest.mark.parametrize("overtones", [0, 1, 4, 9])
def test_overtones_are_multiples_that_fall_like_a_sawtooth(overtones):
    parameters = dataclasses.replace(SINGLE, overtones=overtones)
    frequencies, magnitude = spectrum(pulse_sources(inner_index(SINGLE), parameters)[0])
    fundamental = magnitude[np.argmin(np.abs(frequencies - 250))]
    for k in range(1, 13):
        expected = fundamental / k if k <= overtones + 1 else 0.0
        assert magnitude[np.argmin(np.abs(frequencies - 250 * k))] == pytest.approx(expected, abs=1e-3 * fundamental)


def test_overtones_do_not_alias():
    """Three of the multiples of 1100 Hz lie below 4000 Hz; the next, 4400 Hz, would come out at 3600 Hz."""
    parameters = dataclasses.replace(SINGLE, overtones=9, frequency_ranges_hz=((1100.0, 1100.0),))
    frequencies, magnitude = spectrum(pulse_sources(inner_index(SINGLE), parameters)[0])
    away = np.min([np.abs(frequencies - 1100 * k) for k in (1, 2, 3)], axis=0) > 20
    assert magnitude[away].max() < 1e-4 * magnitude.max()
    # An overtone whose center the rate could hold, but not the breadth that a short envelope gives it.
    close = dataclasses.replace(parameters, sigma_range_seconds=(0.001, 0.001), frequency_ranges_hz=((1950.0, 1950.0),))
    np.testing.assert_array_equal(pulse_sources(3, close), pulse_sources(3, dataclasses.replace(close, overtones=0)))


def test_speakers_have_their_frequencies_and_pulses_are_partly_inside():
    parameters = PulseParameters(pulses=1, overtones=0)
    for speaker, (low, high) in enumerate(parameters.frequency_ranges_hz):
        found, amplitudes = [], []
        for index in range(150):
            source = pulse_sources(index, parameters)[speaker]
            frequencies, magnitude = spectrum(source)
            found.append(frequencies[np.argmax(magnitude)])
            amplitudes.append(np.abs(source).max())
            # The pulse's middle, where it is loudest, lies in the segment: no pulse is only a tail.
            assert amplitudes[-1] > 0.29
        assert low - 2 < min(found) < low + 10 and high - 10 < max(found) < high + 2
        assert np.mean(found) == pytest.approx((low + high) / 2, abs=10)
        assert max(amplitudes) <= 1.0 and np.mean(amplitudes) == pytest.approx(0.65, abs=0.05)


def test_examples_differ_only_in_what_parameters_say():
    """A source of three pulses is that of two and one more; overtones leave the fundamental as it is."""
    three, two = PulseParameters(overtones=0), PulseParameters(pulses=2, overtones=0)
    third = (pulse_sources(11, three) - pulse_sources(11, two)).astype(np.float64)
    for row, (low, high) in zip(third, three.frequency_ranges_hz, strict=True):
        frequencies, magnitude = spectrum(row)
        energy = magnitude**2
        assert energy[(frequencies > low - 10) & (frequencies < high + 10)].sum() > 0.999 * energy.sum()
    frequencies, rich = spectrum(pulse_sources(11)[0])
    _, poor = spectrum(pulse_sources(11, three)[0])
    below = frequencies < 500
    np.testing.assert_allclose(rich[below], poor[below], atol=5e-3 * poor.max())


def test_white_noise():
    noise = np.concatenate([pulse_noise(index) for index in range(10)]).astype(np.float64)
    assert noise.std() == pytest.approx(1, abs=0.01) and abs(noise.mean()) < 0.01
    _, density = welch(noise, RATE, nperseg=256)
    np.testing.assert_allclose(density[1:-1], 2 / RATE, rtol=0.25)


def test_modulated_noise_has_the_same_power_and_beats_twice_a_second():
    envelopes, powers = [], []
    for index in range(40):
        noise = pulse_noise(index, "modulated").astype(np.float64)
        power = (noise**2).reshape(-1, 400).mean(axis=1)
        powers.append(power.mean())
        line = np.abs(np.fft.rfft(power - power.mean()))
        envelopes.append(np.fft.rfftfreq(len(power), 400 / RATE)[np.argmax(line)])
        # Fully modulated: the noise dies away once in a period of half a second.
        assert power.reshape(-1, 10).min(axis=1).max() < 0.05
    assert np.mean(powers) == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(envelopes, 2.0, atol=0.01)


def test_band_noise_is_white_noise_within_the_band_alone():
    noise = np.concatenate([pulse_noise(index, "band") for index in range(10)]).astype(np.float64)
    frequencies, density = welch(noise, RATE, nperseg=1024)
    inside = (frequencies > 130) & (frequencies < 1900)
    np.testing.assert_allclose(density[inside].mean(), 2 / RATE, rtol=0.05)
    assert density[(frequencies < 40) | (frequencies > 2700)].max() < 0.02 * 2 / RATE
    # It is there from the first sample on.
    first = np.concatenate([pulse_noise(index, "band")[:80] for index in range(200)])
    assert first.std() == pytest.approx(noise.std(), rel=0.1)
    # Below half the sample rate, whatever the overtones.
    assert PulseParameters(overtones=20).band_hz == (100.0, 3600.0)
    assert np.isfinite(pulse_noise(0, "band", PulseParameters(overtones=20, seconds=0.1))).all()
