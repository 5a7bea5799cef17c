"""Statistics of a recording after separation: of a short one as a whole, of a long one chunk by chunk."""

from dataclasses import dataclass

import numpy as np

from sepkit.inference.diarization.encoders import Encoder
from sepkit.inference.diarization.swaps import find_orders
from sepkit.inference.long.chunked import ChunkedEstimates
from sepkit.inference.long.recordings import ArrayRecording, Recording
from sepkit.inference.quality.features import excerpt_features, excerpt_spans, recording_features
from sepkit.inference.quality.voices import evidence_spans
from sepkit.inference.runners.base import Runner
from sepkit.inference.runners.level import standardize
from sepkit.inference.selection import Products, gains_of, products_of
from sepkit.inference.waveforms import BlockReader


@dataclass(frozen=True)
class Evidence:
    """Statistics of a separated recording, from which active speakers are decided.

    Args:
        products: Inner products of its estimates and the mixture.
        scores: Log-odds of the estimates, (n,); None for a model without.
        features: Features of the estimates, (n,) each, see `hypothesis_features`; None: there are none, or they were
            not asked for.
        silent: Whether all samples of the mixture are the same.
        sample_rate: Sampling rate of the model, Hz.
        estimates: Estimates at the level of the model, (n, T), or excerpts one after the other.
        rates: Rates of the latents, nats, see `rates_of`; None: there are none, or they were not asked for.
        level: Factor from the level of the products to that of the recording.
    """

    products: Products
    scores: np.ndarray | None
    features: dict[str, np.ndarray] | None
    silent: bool
    sample_rate: int
    estimates: np.ndarray
    rates: dict[str, float] | None = None
    level: float = 1.0


def measure_whole(
    runner: Runner, recording: ArrayRecording, predict: bool, rates: bool, encoder: Encoder | None = None
) -> Evidence:
    """Separate a recording as a whole, and return its statistics.

    Args:
        runner: Runs the model.
        recording: Recording as one block.
        predict: Whether to measure the features that a prediction needs.
        rates: Whether to measure rates, and the bound on the evidence of the mixture.
        encoder: Speaker encoder by which swaps of speakers are undone; None: they stay.

    Raises:
        UserError: estimates that are not finite.
    """
    resampled = np.concatenate(list(recording.at_rate(runner.sample_rate)))
    # A recording shorter than one sample of the model's rate is empty at that rate.
    mixtures, factors = standardize(resampled[None] if resampled.size else np.zeros((1, 1)), runner.level.deviation)
    output = runner.run(mixtures, features=predict, rates=predict or rates, evidence=rates)
    (mixture,), (estimates,) = mixtures, output.estimates
    products = products_of(mixture, estimates)
    if encoder is not None:
        gains = _gains(products)
        leveled = gains * estimates
        orders = find_orders(encoder, lambda *span: leveled[:, slice(*span)], mixture.size, runner.sample_rate)
        if orders is not None:
            estimates = orders.arrange(leveled)
            output.estimates, products = estimates[None], products_of(mixture, estimates)
    return Evidence(
        products,
        None if output.scores is None else output.scores[0],
        recording_features(runner, mixture, output) if predict else None,
        bool(np.ptp(recording.samples) == 0),
        runner.sample_rate,
        estimates,
        output.rates,
        float(factors[0, 0]),
    )


def measure_chunks(
    runner: Runner,
    recording: Recording,
    chunks: ChunkedEstimates,
    predict: bool,
    progress: bool = False,
    encoder: Encoder | None = None,
) -> Evidence:
    """Separate a recording chunk by chunk, and return its statistics.

    Args:
        runner: Runs the model.
        recording: Recording of any length.
        chunks: Takes the mixture, and then holds its estimates; closed if an error occurs.
        predict: Whether to measure the features that a prediction needs, from excerpts.
        progress: Whether to show a bar on a terminal.
        encoder: Speaker encoder by which swaps of speakers are undone; None: they stay.

    Raises:
        UserError: a recording that cannot be read to its end, or estimates that are not finite.
    """
    rate, deviation, features = runner.sample_rate, runner.level.deviation, None
    try:
        for block in recording.at_rate(rate, progress):
            chunks.push(block)
        chunks.finish()
        products = chunks.products()
        if encoder is not None:
            gains = _gains(products)
            orders = find_orders(encoder, lambda *span: gains * chunks.read(*span), chunks.num_samples, rate)
            if orders is not None:
                chunks.arrange(orders, gains)
                products = _products(recording, chunks, rate)
        if predict:
            spans = excerpt_spans(chunks.num_samples, rate)
            mixtures = (standardize(recording.excerpt(*span, rate)[None], deviation)[0][0] for span in spans)
            excerpts = ((mixture, chunks.read(*span)) for mixture, span in zip(mixtures, spans, strict=True))
            features = excerpt_features(runner, excerpts)
        heard = np.concatenate([chunks.read(*span) for span in evidence_spans(chunks.num_samples, rate)], axis=1)
    except BaseException:
        chunks.close()
        raise
    if loudness := chunks.deviation():
        heard = (deviation / loudness * heard).astype(np.float32)
    return Evidence(products, chunks.scores(), features, chunks.silent, rate, heard, chunks.rates())


def _gains(products: Products) -> np.ndarray:
    """Return gains (n, 1) to the level in the mixture, so that parts of estimates can change places."""
    return gains_of(products, "mixture", False, np.arange(len(products.cross)))[:, None]


def _products(recording: Recording, chunks: ChunkedEstimates, rate: int) -> Products:
    """Return the products of all blocks of a recording and of its estimates."""
    mixture, parts = BlockReader(recording.at_rate(rate)), []
    for estimates in chunks.blocks():
        block = mixture.take(estimates.shape[-1]).astype(np.float64)
        parts.append(products_of(block - block.mean(), estimates))
    gram, cross, sums = (np.sum([getattr(part, name) for part in parts], axis=0) for name in ("gram", "cross", "sums"))
    return Products(gram, cross, sums, chunks.num_samples)
