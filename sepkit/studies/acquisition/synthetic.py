"""Synthetic audiograms: convex combinations of a few archetypes, and measurement noise (thesis, part A, 3.1).

The thesis gives the procedure without its numbers. The numbers here make archetypes look like sloping losses. An
average of five archetypes has a sixth of their variance. With a deviation below 30 dB the noise of 5 dB therefore hides
most differences between people, and all ways to choose the next threshold do equally well.
"""

from __future__ import annotations

import numpy as np

from sepkit.errors import UserError
from sepkit.studies.acquisition.audiogram import Audiograms
from sepkit.studies.acquisition.config import EARS, FREQUENCIES_HZ, audiogram_dimensions

MEAN_AGE, AGE_DEVIATION = 55.0, 20.0
MEAN_THRESHOLDS_DB = (25.0, 28.0, 35.0, 45.0, 52.0, 58.0, 62.0)
_OF_ALL, _OF_EAR, _OF_FREQUENCY, _ACROSS_EARS, _WITH_AGE = 0.25, 0.15, 0.6, 0.6, 0.5
# Streams of random numbers that one seed gives.
_ARCHETYPES, _WEIGHTS, _NOISE, _CORRUPTION = range(4)


def archetype_correlation() -> np.ndarray:
    """Return (15, 15) correlation of age and thresholds: .25 + .15 on one ear + .6 exp(-octaves), less across ears.

    Negative eigenvalues are cut to zero and the diagonal is made 1.
    """
    places = [(ear, np.log2(hz)) for ear in EARS for hz in FREQUENCIES_HZ]
    count = 1 + len(places)
    wanted = np.full((count, count), _WITH_AGE)
    for i, (ear, octave) in enumerate(places, 1):
        for j, (other_ear, other_octave) in enumerate(places, 1):
            same = ear == other_ear
            near = _OF_FREQUENCY * np.exp(-abs(octave - other_octave)) * (1.0 if same else _ACROSS_EARS)
            wanted[i, j] = _OF_ALL + _OF_EAR * same + near
    wanted[0, 0] = 1.0
    eigenvalues, vectors = np.linalg.eigh(wanted)
    positive = (vectors * eigenvalues.clip(1e-6)) @ vectors.T
    scale = np.sqrt(np.diag(positive))
    return positive / np.outer(scale, scale)


def draw_archetypes(count: int, spread_db: float, seed: int) -> np.ndarray:
    """Return age and thresholds of archetypes, within their limits, (count, 15).

    Args:
        count: of archetypes.
        spread_db: standard deviation of a threshold over archetypes.
        seed: of the draws.
    """
    mean = np.array([MEAN_AGE, *MEAN_THRESHOLDS_DB * len(EARS)])
    deviation = np.array([AGE_DEVIATION, *[spread_db] * (len(mean) - 1)])
    # Eigenvectors have different signs in different libraries; this factor of the correlation is the same in all.
    factor = np.linalg.cholesky(archetype_correlation())
    noise = np.random.default_rng([seed, _ARCHETYPES]).standard_normal((count, len(mean)))
    return _possible(mean + noise @ factor.T * deviation)


def synthetic_audiograms(
    examples: int = 4096,
    archetypes: int = 5,
    spread_db: float = 45.0,
    noise_db: float = 5.0,
    corruption: float = 0.0,
    seed: int = 0,
) -> tuple[Audiograms, np.ndarray]:
    """Return synthetic audiograms with their noise-free truth, and the (archetypes, 15) archetypes.

    Weights of archetypes are uniform (Dirichlet with parameters 1). Values that noise carries beyond the limits are cut
    to them, as by an audiometer.

    Args:
        examples: number of people.
        archetypes: number of archetypes.
        spread_db: standard deviation of a threshold over archetypes.
        noise_db: of a measurement; years, for age.
        corruption: noise on the archetypes, as a share of the deviation of all values of the uncorrupted data; weights
            and measurement noise stay those of the same seed.
        seed: of everything.

    Raises:
        UserError: numbers out of their range.
    """
    for name, value, least in (
        ("--examples", examples, 10),
        ("--archetypes", archetypes, 2),
        ("--spread-db", spread_db, 0),
        ("--noise-db", noise_db, 0),
        ("--corruption", corruption, 0),
        ("--seed", seed, 0),
    ):
        if not least <= value < np.inf:
            raise UserError(f"{name}: found {value:g}, expected {least} or more")
    corners = draw_archetypes(archetypes, spread_db, seed)
    weights = np.random.default_rng([seed, _WEIGHTS]).dirichlet(np.ones(archetypes), examples)
    noise = noise_db * np.random.default_rng([seed, _NOISE]).standard_normal((examples, corners.shape[1]))
    if corruption > 0:
        deviation = _possible(weights @ corners + noise).std()
        shift = np.random.default_rng([seed, _CORRUPTION]).standard_normal(corners.shape)
        corners = _possible(corners + corruption * deviation * shift)
    truth = weights @ corners
    names = [dimension.name for dimension in audiogram_dimensions()]
    ids = [f"synthetic_{seed}_{place:05d}" for place in range(examples)]
    return Audiograms(names, ids, _possible(truth + noise), truth), corners


def _possible(values: np.ndarray) -> np.ndarray:
    dimensions = audiogram_dimensions()
    return np.clip(values, [d.lowest for d in dimensions], [d.highest for d in dimensions])
