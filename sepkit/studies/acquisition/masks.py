"""Random parts of training as functions of (seed, epoch, index): missing values, dequantization, order, noise.

A table of random numbers is drawn for a whole epoch at once, row by row: row i depends on (seed, epoch, i) alone, not
on the number of rows.
"""

from __future__ import annotations

import numpy as np

from sepkit.studies.acquisition.config import MissingnessConfig

# Streams of random numbers that one seed gives.
_MASKS, _DEQUANTIZATION, _ORDER, _LATENT = range(4)


def observed_in(config: MissingnessConfig, count: int, dimensions: int, seed: int, epoch: int) -> np.ndarray:
    """Return what each datum shows in an epoch, (count, dimensions) bool; static missingness is the same in all.

    For each datum rho ~ U(0, 1), and each dimension is hidden with probability rho. Then a share of data is hidden
    entirely and another share not at all.

    Args:
        config: kind and shares of missingness.
        count: of data.
        dimensions: D.
        seed: of the training.
        epoch: from 0 on.

    Source: thesis, part A, section 3.1.
    """
    numbers = _generator(_MASKS, seed, 0 if config.kind == "static" else epoch).random((count, dimensions + 2))
    rho, special, each = numbers[:, :1], numbers[:, 1], numbers[:, 2:]
    observed = each >= rho
    observed[special < config.nothing_observed] = False
    observed[special >= 1 - config.everything_observed] = True
    return observed


def dequantization(steps: np.ndarray, count: int, seed: int, epoch: int) -> np.ndarray:
    """Return uniform numbers in +- half a step of each dimension, (count, D); drawn anew every epoch.

    Args:
        steps: (D,), 0 where a dimension has no grid.
        count: of data.
        seed: of the training.
        epoch: from 0 on.
    """
    return (_generator(_DEQUANTIZATION, seed, epoch).random((count, len(steps))) - 0.5) * steps


def order_of(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of the data in an epoch, (count,).

    Args:
        count: of data.
        seed: of the training.
        epoch: from 0 on.
    """
    return _generator(_ORDER, seed, epoch).permutation(count)


def latent_noise(rows: int, latent: int, seed: int, step: int) -> np.ndarray:
    """Return standard normal numbers of a training step, (rows, latent).

    Args:
        rows: data in the batch.
        latent: L.
        seed: of the training.
        step: its number.
    """
    return _generator(_LATENT, seed, step).standard_normal((rows, latent))


def _generator(stream: int, seed: int, when: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream, when])
