"""Options of `sepkit prepare voices`; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_DEFAULT_SNR_DB = (5.0, 15.0)


@dataclass(frozen=True, kw_only=True)
class VoicesOptions:
    """Write utterances of known speakers, clean or each with noise and a band tilt of its own, to measure clusters on.

    Args:
        speech: folder of single-speaker recordings, as for `sepkit prepare folder`
        out: folder of SPEAKER/NAME.flac and voices.csv (path, start_seconds, duration_seconds, speaker)
        split: train, dev or test: whose speakers to use, where the folder has splits
        speaker_from: how to find the speaker, see `sepkit prepare folder`
        like: regular expression that names of speakers match; default: all
        speakers: number of speakers, those with most recordings first; default: all
        noisy: add noise at 5 to 15 dB and a band tilt (four cosines of 0.3 nepers) to each utterance
        snr_db: range of the signal-to-noise ratio of --noisy, dB
        sample_rate: Hz
        separated: a model: mix each utterance with one of another speaker of the collection, within 2.5 dB of equal
            level, separate the two, and keep the estimate of the utterance
        seed: of noise, tilts and mixtures
    """

    speech: Path
    out: Path
    split: str = "test"
    speaker_from: str = "first"
    like: str = ""
    speakers: int | None = None
    noisy: bool = False
    snr_db: tuple[float, float] = _DEFAULT_SNR_DB
    sample_rate: int = 8000
    separated: str | None = None
    seed: int = 0
