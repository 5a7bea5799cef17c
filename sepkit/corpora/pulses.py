"""Gaussian pulse mixtures: a small separation problem with known statistics, for rate-distortion curves.

What it is: mixtures of two synthetic "speakers", each three sinusoidal pulses with overtones whose fundamentals lie in
the speaker's own frequency range, with white noise of amplitude 0.5 added after mixing. The references are without
noise. Besides the test set of that condition there is one for each condition that models were
not trained in.
An example depends on its index and the parameters alone, not on the number of examples or on earlier ones. Parameters
only rescale uniform random numbers. The same index with two parameter sets therefore gives the same example, changed
only in what those parameters control.
Size: 2048 mixtures of 3 s for training, 128 and 1024 for validation and test: 3.1 GB with all conditions, made in some
minutes. There are few files: each set has one recording per speaker and one of noise; mixtures are parts of them.
License: made on your machine from random numbers; no one holds rights in them.
Traps: both speakers are in every split, so models can generalize only to other conditions. All test sets have the same
indices, so conditions are compared in pairs; appendix K.1 can also be read as new indices for each. `PulseParameters`,
`pulse_noise` and `conditions` list what appendices K.1 and M leave open and what was chosen. Leave dynamic mixing off:
it would combine one speaker's pulses with another noise, or with themselves.
Citation: the thesis on variational inference for encoder-masker-decoders, appendices K and M.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from sepkit.choices import check_bounds
from sepkit.corpora._recordings import SPLITS, check_provenance
from sepkit.corpora.options import PulsesOptions
from sepkit.data.audio import write_blocks
from sepkit.data.headers import MAX_WAV_BYTES
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, write_manifest
from sepkit.errors import UserError

TRAINING_NOISE_AMPLITUDE = 0.5

_FIRST_INDEX = 100_000
_SAMPLE_BYTES = 4

NoiseKind = Literal["white", "modulated", "band"]

_MODULATION_HZ = 2.0
_BAND_FILTER_ORDER = 4
# The band-pass has settled after this many periods of its lower edge.
_RING_IN_PERIODS = 20
# At four deviations a Gaussian's spectrum, which is Gaussian too, has fallen to 3e-4.
_SPECTRAL_DEVIATIONS = 4.0
# Streams of random numbers of an index: one for the speakers, one for noise.
_SOURCE_STREAM, _NOISE_STREAM = 0, 1


@dataclass(frozen=True)
class PulseParameters:
    """Ranges of an example's sources; the defaults are the training condition. Frequency ranges are one for each
    speaker.

    The thesis gives the frequency ranges, the number of pulses, the length, and the widths U(0.05, 0.3) s (appendix M).
    It does not give the range of amplitudes. It has four overtones in appendix K.1 and five in M; the default follows
    K.1. Overtone k has 1/(k + 1) of the fundamental's amplitude, as in a sawtooth. A pulse has one phase, which is
    multiplied for each overtone as the frequency is.
    """

    pulses: int = 3
    overtones: int = 4
    amplitude_range: tuple[float, float] = (0.3, 1.0)
    sigma_range_seconds: tuple[float, float] = (0.05, 0.3)
    frequency_ranges_hz: tuple[tuple[float, float], ...] = ((300.0, 400.0), (100.0, 200.0))
    seconds: float = 3.0
    sample_rate: int = 8000

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.num_samples >= 1):
            raise UserError(f"seconds: found {self.seconds}, expected at least one sample at {self.sample_rate} Hz")
        highest = max(high for _, high in self.frequency_ranges_hz)
        if highest >= self.sample_rate / 2:
            raise UserError(f"frequency_ranges_hz: found {highest} Hz, expected below half of {self.sample_rate} Hz")

    @property
    def num_samples(self) -> int:
        """Length in samples."""
        return round(self.seconds * self.sample_rate)

    @property
    def band_hz(self) -> tuple[float, float]:
        """The band from the lowest fundamental to the highest overtone, at most 90 % of half the sample rate."""
        highest = (self.overtones + 1) * max(high for _, high in self.frequency_ranges_hz)
        return min(low for low, _ in self.frequency_ranges_hz), min(highest, 0.45 * self.sample_rate)


USUAL_PULSES = PulseParameters()
"""The training condition."""


def pulse_sources(index: int, parameters: PulseParameters = USUAL_PULSES) -> np.ndarray:
    """Return the sources of one example, (m, T) float32, one for each frequency range.

    Each is a sum of pulses, each with its own fundamental f, amplitude a, phase p, center c and width s:

        a exp(-(t - c)^2 / (2 s^2)) sum_k sin(k (2 pi f (t - c) + p)) / k,    k = 1 ... overtones + 1

    The center lies in the segment, so at least half of a short pulse does too. Overtones whose spectrum, broadened by
    the envelope, reaches half the sample rate are left out.

    Source: VI-EMD (thesis, appendix K.1).
    """
    time = np.arange(parameters.num_samples) / parameters.sample_rate
    sources = np.zeros((len(parameters.frequency_ranges_hz), parameters.num_samples))
    for speaker, (source, frequency_range) in enumerate(zip(sources, parameters.frequency_ranges_hz, strict=True)):
        generator = np.random.default_rng([index, _SOURCE_STREAM, speaker])
        low, high = np.transpose([frequency_range, parameters.amplitude_range, parameters.sigma_range_seconds])
        # Drawn row by row, so that a larger number of pulses leaves the first ones unchanged.
        for draws in generator.random((parameters.pulses, 5)):
            frequency_hz, amplitude, sigma = low + (high - low) * draws[[0, 1, 4]]
            phase, center = 2 * np.pi * draws[2], parameters.seconds * draws[3]
            breadth_hz = _SPECTRAL_DEVIATIONS / (2 * np.pi * sigma)
            # sin(k x) is the imaginary part of exp(i x)^k: one sine and cosine for all of them.
            rotation = np.exp(1j * (2 * np.pi * frequency_hz * (time - center) + phase))
            powers, tone = np.ones_like(rotation), np.zeros_like(time)
            for k in range(1, parameters.overtones + 2):
                if k == 1 or k * frequency_hz + breadth_hz < parameters.sample_rate / 2:
                    powers *= rotation
                    tone += powers.imag / k
            source += amplitude * np.exp(-0.5 * ((time - center) / sigma) ** 2) * tone
    return sources.astype(np.float32)


def pulse_noise(index: int, kind: NoiseKind = "white", parameters: PulseParameters = USUAL_PULSES) -> np.ndarray:
    """Return the noise of one example, (T,) float32, for a noise amplitude of 1.

    "white" is Gaussian with a deviation of 1. The others are made from the same white noise. "modulated" multiplies it
    by sqrt(2/3) (1 + cos(2 pi 2 Hz t + p)), p random, which keeps the mean power. "band" filters it with a Butterworth
    band-pass from the lowest fundamental to the highest overtone: the density there is that of the white noise, so the
    total power is lower. The thesis leaves both powers open. Noise is independent of the example's sources.

    Source: VI-EMD (thesis, appendices K.1 and M).
    """
    generator = np.random.default_rng([index, _NOISE_STREAM])
    phase = 2 * np.pi * generator.random()
    noise = generator.standard_normal(parameters.num_samples)
    if kind == "modulated":
        time = np.arange(parameters.num_samples) / parameters.sample_rate
        noise *= np.sqrt(2 / 3) * (1 + np.cos(2 * np.pi * _MODULATION_HZ * time + phase))
    elif kind == "band":
        from scipy.signal import butter, sosfilt

        low, high = parameters.band_hz
        sections = butter(_BAND_FILTER_ORDER, (low, high), "bandpass", fs=parameters.sample_rate, output="sos")
        ring_in = math.ceil(_RING_IN_PERIODS * parameters.sample_rate / low)
        before = generator.standard_normal(ring_in)
        noise = np.asarray(sosfilt(sections, np.concatenate([before, noise])))[ring_in:]
    return noise.astype(np.float32)


@dataclass(frozen=True)
class Condition:
    """How the mixtures of a test set are made; the amplitude is the standard deviation of the noise."""

    parameters: PulseParameters
    noise_amplitude: float = TRAINING_NOISE_AMPLITUDE
    noise: NoiseKind = "white"


def conditions(training: PulseParameters = USUAL_PULSES) -> dict[str, Condition]:
    """Return by name the conditions that differ from training in one thing each.

    The thesis counts five overtones in training, six and ten in two conditions, against four in appendix K.1; here the
    two conditions have one more than training, and twice as many. The thesis does not say how near the frequency ranges
    come in two conditions. Here the ranges are wider at either end by 25 Hz (as it says), 45 Hz (10 Hz apart) and 75 Hz
    (overlapping by 50 Hz).

    Source: VI-EMD (thesis, appendix M and figure 10).
    """

    def widened(by_hz: float) -> Condition:
        ranges = tuple((low - by_hz, high + by_hz) for low, high in training.frequency_ranges_hz)
        return Condition(replace(training, frequency_ranges_hz=ranges))

    return {
        "noise_none": Condition(training, 0.0),
        "noise_low": Condition(training, 0.1),
        "noise_0_25": Condition(training, 0.25),
        "noise_0_75": Condition(training, 0.75),
        "noise_high": Condition(training, 1.0),
        "pulses_2": Condition(replace(training, pulses=2)),
        "pulses_4": Condition(replace(training, pulses=4)),
        "overtones_none": Condition(replace(training, overtones=0)),
        "overtones_one_more": Condition(replace(training, overtones=training.overtones + 1)),
        "overtones_twice": Condition(replace(training, overtones=2 * training.overtones)),
        "noise_modulated": Condition(training, noise="modulated"),
        "noise_band": Condition(training, noise="band"),
        "widths_any": Condition(replace(training, sigma_range_seconds=(0.01, 0.5))),
        "widths_short": Condition(replace(training, sigma_range_seconds=(0.01, 0.05))),
        "widths_long": Condition(replace(training, sigma_range_seconds=(0.3, 0.5))),
        "frequencies_expanded": widened(25.0),
        "frequencies_near": widened(45.0),
        "frequencies_overlapping": widened(75.0),
    }


def prepare_pulses(options: PulsesOptions) -> Path:
    """Write the manifests, with the recordings in `wav/` below them; return their folder.

    `train.jsonl`, `dev.jsonl` and `test.jsonl` hold the training condition, `test_CONDITION.jsonl` the others. Training
    has the indices from 100000 on, validation the next ones, and every test set those after them.
    Mixtures are described, not written; those that differ only in the level of the noise share files. Recordings that
    exist are kept: the same command continues where it stopped.
    """
    out = Path(options.out)
    counts = {f"{split}_mixtures": getattr(options, f"{split}_mixtures") for split in SPLITS}
    check_bounds(options)
    training = PulseParameters(seconds=options.seconds, sample_rate=options.sample_rate)
    longest = max(counts.values())
    if longest * training.num_samples * _SAMPLE_BYTES > MAX_WAV_BYTES:
        most = MAX_WAV_BYTES // (training.num_samples * _SAMPLE_BYTES)
        raise UserError(f"found {longest} mixtures of {options.seconds} s, expected at most {most}: they share a wav")
    known = conditions(training)
    for name in options.conditions or ():
        if name not in known:
            raise UserError(f"--conditions: found {name!r}, expected any of {', '.join(known)}")
    chosen = {name: known[name] for name in (known if options.conditions is None else options.conditions)}
    check_provenance(out / "pulses.json", counts | asdict(training))

    first = _FIRST_INDEX
    usual = Condition(training)
    for split in ("train", "dev"):
        _write_set(out, split, usual, usual, range(first, first + counts[f"{split}_mixtures"]))
        first += counts[f"{split}_mixtures"]
    for name, condition in {"test": usual, **{f"test_{name}": found for name, found in chosen.items()}}.items():
        _write_set(out, name, condition, usual, range(first, first + options.test_mixtures))
    return out


def _write_set(out: Path, name: str, condition: Condition, usual: Condition, indices: range) -> None:
    """Write a manifest and the missing recordings; sets share the recordings that their conditions have in common."""
    parameters = condition.parameters
    split = name.split("_")[0]
    sources_of = split if parameters == usual.parameters else name
    # White noise does not depend on the sources.
    noise_of = split if condition.noise == "white" else name
    speakers = range(len(parameters.frequency_ranges_hz))
    paths = [f"wav/{sources_of}_speaker{speaker}.wav" for speaker in speakers]
    noise_path = f"wav/{noise_of}_noise.wav"
    missing = [speaker for speaker in speakers if not (out / paths[speaker]).is_file()]
    _write(
        [out / paths[speaker] for speaker in missing], indices, parameters,
        lambda index: pulse_sources(index, parameters)[missing], sources_of,
    )  # fmt: skip
    if condition.noise_amplitude and not (out / noise_path).is_file():
        _write(
            [out / noise_path], indices, parameters,
            lambda index: pulse_noise(index, condition.noise, parameters)[None], f"{noise_of} noise",
        )  # fmt: skip
    length = parameters.num_samples
    entries = [
        MixtureEntry(
            id=f"{name}-{index}",
            sample_rate=parameters.sample_rate,
            num_samples=length,
            sources=[
                SourceEntry(path, speaker=str(speaker), start=position * length, num_samples=length)
                for speaker, path in zip(speakers, paths, strict=True)
            ],
            corpus="pulses",
            task="sep_noisy" if condition.noise_amplitude else "sep_clean",
            noise=NoiseEntry(noise_path, start=position * length, gain=condition.noise_amplitude)
            if condition.noise_amplitude
            else None,
        )
        for position, index in enumerate(indices)
    ]
    write_manifest(out / f"{name}.jsonl", entries)


def _write(
    paths: Sequence[Path], indices: range, parameters: PulseParameters, make: Callable[[int], np.ndarray], name: str
) -> None:
    """Write what `make` returns for each index, (C, T), end to end, each of the C rows to a file of its own."""
    from tqdm import tqdm

    with ExitStack() as stack:
        size = len(indices) * parameters.num_samples
        writers = [stack.enter_context(write_blocks(path, parameters.sample_rate, size)) for path in paths]
        for index in tqdm(indices if paths else (), desc=f"making {name}", unit="mixture", leave=False, disable=None):
            for writer, waveform in zip(writers, make(index), strict=True):
                writer.write(waveform)
