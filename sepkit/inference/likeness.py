"""How alike the voices of the estimates are, and how far apart the estimates are in time and frequency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sepkit.inference.profiles import Measured

DOMINANCE = "dominance"
"""Feature by which intervals and the flag of mixtures that are not separated tell voices that are alike."""

LIKENESS_FEATURES = (DOMINANCE, "pitch_distance", "voice_distance")
"""Names of the features of `likeness_features`."""

# A trait of less is not known. Unknown distances are taken to be those of a usual pair of voices.
_LEAST_SECONDS = 0.1
# Of cepstra; steady tones have less.
_LEAST_DEVIATION = 0.1
_USUAL_PITCH_DISTANCE, _USUAL_VOICE_DISTANCE = 0.35, 1.1


def likeness_features(powers: Sequence[np.ndarray], voices: Mapping[str, Measured]) -> dict[str, np.ndarray]:
    """Return (n,) of each of `LIKENESS_FEATURES`, for two estimates or more.

    * `dominance`: share of the energy of all estimates that is in the strongest one of each frame and frequency; 1 if
      they never overlap. The same for all estimates.
    * `pitch_distance`: difference of the mean log pitch from that of the nearest other estimate.
    * `voice_distance`: root mean square difference of the mean cepstra from those of the nearest other estimate, in
      standard deviations inside estimates.

    Args:
        powers: power spectra of the frames of each estimate, (F, K).
        voices: their traits, see `measure_voices`.
    """
    stacked = np.stack(powers)
    total = float(stacked.sum())
    share = float(stacked.max(0).sum()) / total if total > 0 else 1.0
    pitch, cepstra = voices["pitch"], voices["cepstra"]
    deviations = np.maximum(np.sqrt(np.diagonal(cepstra.scatter) / max(1, cepstra.frames)), _LEAST_DEVIATION)
    return {
        DOMINANCE: np.full(len(stacked), share),
        "pitch_distance": _to_nearest(pitch.means, pitch.seconds, _USUAL_PITCH_DISTANCE),
        "voice_distance": _to_nearest(cepstra.means / deviations, cepstra.seconds, _USUAL_VOICE_DISTANCE),
    }


def _to_nearest(means: np.ndarray, seconds: np.ndarray, unknown: float) -> np.ndarray:
    """Return (n,) root mean square differences of means (n, D) from the nearest other whose trait is known."""
    known = seconds > _LEAST_SECONDS
    distances = np.sqrt(np.square(means[:, None] - means[None]).mean(-1))
    distances[:, ~known] = np.inf
    np.fill_diagonal(distances, np.inf)
    nearest = distances.min(1)
    return np.where(known & np.isfinite(nearest), nearest, unknown)
