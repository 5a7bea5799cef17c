from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.signal import welch

from sepkit.data.pulses import PulseParameters, pulse_noise, pulse_sources
from sepkit.errors import UserError

RATE = 8000
# One pulse of one speaker; only phase and center are unknown.
SINGLE = PulseParameters(
    pulses=1,
    overtones=0,
    amplitude_range=(0.7, 0.7),
    sigma_range_seconds=(0.1, 0.1),
    frequency_ranges_hz=((250.0, 250.0),),
)


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
    index = inner_index(SINGLE)
    frequencies, magnitude = spectrum(pulse_sources(index, parameters)[0])
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
    none = dataclasses.replace(close, overtones=0)
    np.testing.assert_array_equal(pulse_sources(3, close), pulse_sources(3, none))


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pulses": 0}, "pulses: found 0, expected at least 1"),
        ({"overtones": -1}, "overtones: found -1"),
        ({"sample_rate": 0}, "sample_rate: found 0"),
        ({"seconds": 0.0}, r"seconds: found 0\.0, expected at least one sample"),
        ({"seconds": float("nan")}, "seconds: found nan"),
        ({"seconds": float("inf")}, "seconds: found inf"),
        ({"frequency_ranges_hz": ()}, "frequency_ranges_hz: found none"),
        ({"sigma_range_seconds": (0.2, 0.1)}, r"sigma_range_seconds: found 0\.2 to 0\.1"),
        ({"amplitude_range": (0.0, 1.0)}, "amplitude_range: found 0"),
        ({"frequency_ranges_hz": ((100.0, float("nan")),)}, r"frequency_ranges_hz\[0\]: found 100\.0 to nan"),
        ({"sample_rate": 800}, r"frequency_ranges_hz: found 400\.0 Hz, expected less than half"),
    ],
)
def test_bad_parameters_are_one_line(options, message):
    with pytest.raises(UserError, match=message) as caught:
        PulseParameters(**options)
    assert "\n" not in str(caught.value)


def test_unknown_noise():
    with pytest.raises(UserError, match="noise kind: found 'pink', expected one of white, modulated, band"):
        pulse_noise(0, "pink")  # type: ignore[arg-type]
