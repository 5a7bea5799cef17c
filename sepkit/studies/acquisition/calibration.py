"""Fit a model's stopping rule on validation data, and measure the partial ELBOs that are usual in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sepkit.errors import UserError
from sepkit.studies.acquisition.audiogram import Audiograms, read_audiograms
from sepkit.studies.acquisition.predictive import SAMPLES, TrainedVAE, latent_draws
from sepkit.studies.acquisition.session import load_vae
from sepkit.studies.acquisition.simulation import play
from sepkit.studies.acquisition.stopping import (
    FEATURES,
    StoppingRule,
    fingerprint,
    fit_stopping,
    write_stopping,
)

_LOW_PERCENT = 1.0


def calibrate(model: str | Path, manifest: str | Path, first: int | None = None) -> tuple[StoppingRule, Path]:
    """Fit the rule on sessions with the data in `manifest`; return it, and its path beside the model.

    Errors are measured against the noise-free values if these are known, else against the data.

    Args:
        model: folder that `sepkit train` wrote.
        manifest: CSV file, dev.csv for example, that the model was not trained on.
        first: number of its audiograms, from the beginning; None: all.

    Raises:
        UserError: no such model or file, data of other dimensions, or too few of them.
    """
    from sepkit.models.storage.checkpoints import find_checkpoint

    folder = find_checkpoint(model)
    vae = load_vae(folder)
    data = complete_data(read_for(vae, manifest), first)
    sessions = play(vae, data, "largest_variance", latent_draws(max(SAMPLES, 4 * vae.config.latent), vae.config.latent))
    rule = fit_stopping(sessions, FEATURES)
    rule.manifest, rule.weights = str(manifest), fingerprint(vae)
    return rule, write_stopping(rule, folder)


def read_for(vae: TrainedVAE, manifest: str | Path, refused: list[str] | None = None) -> Audiograms:
    """Return the data in a CSV file that has the dimensions of a model.

    Args:
        vae: the model.
        manifest: the file.
        refused: as in `read_audiograms`.

    Raises:
        UserError: see `read_audiograms`.
    """
    try:
        return read_audiograms(manifest, vae.config.dimensions, refused)
    except UserError as error:
        if "found no column" in str(error):
            raise UserError(f"{error}; the model is of these dimensions") from None
        raise


def complete_data(data: Audiograms, first: int | None = None) -> Audiograms:
    """Return the complete data: all of them, or the first.

    Args:
        data: with missing values or without.
        first: how many of the complete ones; None: all.
    """
    complete = np.flatnonzero(data.complete)
    return data[complete if first is None else complete[:first]]


def low_elbos(vae: TrainedVAE, values: np.ndarray, draws: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the partial ELBO that 1 % of these data are below, by the number of observed dimensions, (D + 1,).

    For each number, random dimensions of each datum are observed, those known from the beginning first.

    Args:
        vae: the model.
        values: (N, D), complete data.
        draws: (S, L), samples of z.
        seed: of the dimensions that are observed.
    """
    dimensions = values.shape[1]
    numbers = np.random.default_rng([seed, 1]).random(values.shape)
    numbers[:, [d.known for d in vae.config.dimensions]] -= 1.0
    ranks = numbers.argsort(1).argsort(1)
    elbos = [vae.predict(values, ranks < observed, draws).partial_elbo for observed in range(dimensions + 1)]
    return np.array([np.percentile(elbo, _LOW_PERCENT) for elbo in elbos])
