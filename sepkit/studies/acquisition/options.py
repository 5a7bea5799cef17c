"""The options of `sepkit prepare audiograms` and `prepare nhanes`; this module imports neither numpy nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class AudiogramOptions:
    """Make synthetic audiograms with their noise-free truth, or divide your own, as train.csv, dev.csv and test.csv.

    Args:
        out: folder of the files
        csv: your audiograms, with the columns id, age, right_500 ... left_8000 and, if you like, split; of the options
            below, only --seed then has an effect
        examples: number of people
        archetypes: number of audiograms that all others are weighted averages of
        spread_db: standard deviation of a threshold over archetypes
        noise_db: standard deviation of a measurement (years, for age)
        corruption: shift archetypes by noise of this share of the data's standard deviation, for test data unlike the
            training data (0.05 or 0.5 in the thesis); people and measurement noise stay those of the seed
        seed: seed of everything; with --csv, of the division into splits where the file has none
    """

    out: Path
    csv: Path | None = None
    examples: int = 4096
    archetypes: int = 5
    spread_db: float = 45.0
    noise_db: float = 5.0
    corruption: float = 0.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class NHANESOptions:
    """Join audiometry and demographics of the NHANES survey as train.csv, dev.csv and test.csv.

    Args:
        audiometry: AUX1.XPT AUX_B.XPT AUX_C.XPT AUX_G.XPT AUX_I.XPT, those that you have
        demographics: DEMO.XPT DEMO_B.XPT ... of the same years
        out: folder of the files
        keep_incomplete: also keep people of whom a threshold is missing; without it, only those with an age and all
            fourteen thresholds
        seed: seed of the division into train, dev and test
    """

    audiometry: Sequence[str]
    demographics: Sequence[str]
    out: Path
    keep_incomplete: bool = False
    seed: int = 0
