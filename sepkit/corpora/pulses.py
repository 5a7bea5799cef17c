"""Gaussian pulse mixtures: a small separation problem with known statistics, for rate-distortion curves.

What it is: mixtures of two synthetic "speakers", each three sinusoidal pulses with overtones whose fundamentals lie in
the speaker's own frequency range (`sepkit.data.pulses`), with white noise of amplitude 0.5 added after mixing. The
references are without noise. Besides the test set of that condition there is one for each condition that models were
not trained in.
Size: 2048 mixtures of 3 s for training, 128 and 1024 for validation and test: 3.1 GB with all conditions, made in some
minutes. There are few files: each set has one recording per speaker and one of noise; mixtures are parts of them.
License: made on your machine from random numbers; nobody has rights in them.
Traps: both speakers are in every split, so models can generalize only to other conditions. All test sets have the same
indices, so conditions are compared in pairs; appendix K.1 can also be read as new indices for each. `PulseParameters`,
`pulse_noise` and `conditions` list what appendices K.1 and M leave open and what was chosen. Leave dynamic mixing off:
it would combine one speaker's pulses with another noise, or with themselves.
Citation: the thesis on variational inference for encoder-masker-decoders, appendices K and M.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sepkit.corpora._provenance import check_provenance
from sepkit.corpora._recordings import SPLITS
from sepkit.corpora.options import PulsesOptions
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, write_manifest
from sepkit.data.pulses import NoiseKind, PulseParameters, pulse_noise, pulse_sources
from sepkit.errors import UserError

TRAINING_NOISE_AMPLITUDE = 0.5

_REPLICATE_STRIDE = 100_000
# What the header of a wav file can count.
_MAX_WAV_BYTES = 2**32 - 4096
_SAMPLE_BYTES = 4


@dataclass(frozen=True)
class Condition:
    """How the mixtures of a test set are made; the amplitude is the standard deviation of the noise."""

    parameters: PulseParameters
    noise_amplitude: float = TRAINING_NOISE_AMPLITUDE
    noise: NoiseKind = "white"


def conditions(training: PulseParameters | None = None) -> dict[str, Condition]:
    """Return by name the conditions that differ from training in one thing each.

    The thesis counts five overtones in training, six and ten in two conditions, against four in appendix K.1; here the
    two conditions have one more than training, and twice as many. The thesis does not say how near the frequency ranges
    come in two conditions. Here the ranges are wider at either end by 25 Hz (as it says), 45 Hz (10 Hz apart) and 75 Hz
    (overlapping by 50 Hz).

    Source: VI-EMD (thesis, appendix M and figure 10).
    """
    training = training or PulseParameters()

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
    has the indices from 100000 times the replicate on, validation the next ones, and every test set those after them.
    Mixtures are described, not written; those that differ only in the level of the noise share files. Recordings that
    exist are kept: the same command continues where it stopped.
    """
    out, replicate = Path(options.out), options.replicate
    counts = {f"{split}_mixtures": getattr(options, f"{split}_mixtures") for split in SPLITS}
    for name, value in (counts | {"replicate": replicate}).items():
        if value < 1:
            raise UserError(f"{name}: found {value}, expected at least 1")
    total = sum(counts.values())
    if total > _REPLICATE_STRIDE:
        raise UserError(f"found {total} mixtures of train, dev and test, expected at most {_REPLICATE_STRIDE}")
    training = PulseParameters(seconds=options.seconds, sample_rate=options.sample_rate)
    longest = max(counts.values())
    if longest * training.num_samples * _SAMPLE_BYTES > _MAX_WAV_BYTES:
        most = _MAX_WAV_BYTES // (training.num_samples * _SAMPLE_BYTES)
        raise UserError(
            f"found {longest} mixtures of {options.seconds} s, expected at most {most}: they share a wav file"
        )
    chosen = _choose(conditions(training), options.conditions)
    check_provenance(out / "pulses.json", counts | {"replicate": replicate} | training.to_plain())

    first = replicate * _REPLICATE_STRIDE
    usual = Condition(training)
    for split in ("train", "dev"):
        _write_set(out, split, usual, usual, range(first, first + counts[f"{split}_mixtures"]))
        first += counts[f"{split}_mixtures"]
    for name, condition in {"test": usual, **{f"test_{name}": found for name, found in chosen.items()}}.items():
        _write_set(out, name, condition, usual, range(first, first + options.test_mixtures))
    return out


def _choose(known: dict[str, Condition], names: Sequence[str] | None) -> dict[str, Condition]:
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise UserError(f"--conditions: found {unknown[0]!r}, expected any of {', '.join(known)}")
    return known if names is None else {name: known[name] for name in names}


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
    if missing:
        made = _joined(lambda index: pulse_sources(index, parameters)[missing], indices, sources_of)
        for speaker, waveform in zip(missing, made, strict=True):
            audio.write(out / paths[speaker], waveform, parameters.sample_rate)
    if condition.noise_amplitude and not (out / noise_path).is_file():
        made = _joined(
            lambda index: pulse_noise(index, condition.noise, parameters)[None], indices, f"{noise_of} noise"
        )
        audio.write(out / noise_path, made[0], parameters.sample_rate)
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


def _joined(make: Callable[[int], np.ndarray], indices: range, name: str) -> np.ndarray:
    """Concatenate the results of `make` for each index, (C, T), to (C, len(indices) * T)."""
    from tqdm import tqdm

    joined = np.empty((0, 0), dtype=np.float32)
    for position, index in enumerate(tqdm(indices, desc=f"making {name}", unit="mixture", leave=False, disable=None)):
        waveforms = make(index)
        channels, length = waveforms.shape
        if position == 0:
            joined = np.empty((channels, len(indices) * length), dtype=np.float32)
        joined[:, position * length : (position + 1) * length] = waveforms
    return joined
