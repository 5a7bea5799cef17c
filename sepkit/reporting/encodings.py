"""Draw what a model makes of one mixture: encodings, masks, masked encodings and estimates, sampled where they are
random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sepkit.cleaning import escaped
from sepkit.data import audio
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from sepkit.evaluation.run_folder import EvaluationFolder, Run
from sepkit.models import EncoderMaskerDecoder, load_pretrained
from sepkit.models.stft_filterbank import STFTFilterbank
from sepkit.reporting.examples import model_path
from sepkit.reporting.figures import COLORS, draw_spectrogram, level_db, save_png

# Least length of the excerpt, and its number of frames.
_EXCERPT_SECONDS, _EXCERPT_FRAMES = 0.05, 16
_SHOWN_DB = 60.0


@dataclass
class Drawn:
    """What a model makes of a mixture; images are (K, F), waveforms (T,).

    Args:
        sample_rate: of the model, Hz.
        stride: samples between frames.
        mixture: the waveform.
        sources: of the speakers.
        estimates: of each source, in the same order, at the levels nearest to the sources.
        encoding: absolute values of a sample, dB.
        masks: absolute values of a sample of each source's mask.
        masked: absolute values of the product of both, dB.
    """

    sample_rate: int
    stride: int
    mixture: np.ndarray
    sources: np.ndarray
    estimates: np.ndarray
    encoding: np.ndarray
    masks: np.ndarray
    masked: np.ndarray


def encodings_section(runs: Sequence[Run], path: Path) -> str:
    """Return Markdown with two figures for each run, FILE_encodings.png and FILE_masks.png beside `path` (with several
    runs, _RUN behind them).

    The mixture is that of median SI-SDR improvement in the run's first evaluation with two speakers in every mixture.

    Raises:
        UserError: an evaluation without its model, or of mixtures whose sources were not all matched.

    Source: thesis, appendix B, supplementary C, figures 4 and 5.
    """
    parts = []
    for run in runs:
        evaluation = next((e for e in run.evaluations if "si_sdri_db" in e.metrics), None)
        if evaluation is None:
            raise UserError(f"--figure encodings: {run.name} has no evaluation with si_sdri_db; evaluate it")
        name, drawn = drawn_mixture(evaluation)
        ending = f"_{run.name}" if len(runs) > 1 else ""
        whole = save_png(encodings_figure(drawn), path, f"encodings{ending}", dpi=75)
        excerpt = save_png(masks_figure(drawn), path, f"masks{ending}", dpi=100)
        title = escaped(f"{run.name}, {evaluation.name}, mixture {name}")
        parts.append(f"![Encodings of {title}]({whole})\n\n![Masks of {title}]({excerpt})\n")
    return "\n".join(
        [*parts, "Encodings and masks are samples of their posteriors where these are random, absolute values.\n"]
    )


def drawn_mixture(evaluation: EvaluationFolder) -> tuple[str, Drawn]:
    """Return the name of the mixture of median SI-SDR improvement, and what the evaluated model makes of it."""
    named = evaluation.summary.get("model")
    if not named:
        raise UserError(f"--figure encodings: {evaluation.folder} is of estimates; expected the evaluation of a model")
    model = load_pretrained(model_path(named, evaluation))
    scores = evaluation.scores("si_sdri_db")
    order = np.argsort(scores, kind="stable")
    place = int(order[(int(np.isfinite(scores).sum()) - 1) // 2])
    key, row = evaluation.keys()[place], evaluation.rows[place]
    matched = row.get("assignment", "").split()
    if not matched or not all(word.isdigit() for word in matched):
        raise UserError(f"--figure encodings: {key[1]} has sources without an estimate; choose another evaluation")
    entry = evaluation.entries[key]
    mixed = mix_entry(entry)
    waveforms = [audio.resample(w, entry.sample_rate, model.sample_rate) for w in (mixed.mixture, *mixed.sources)]
    return key[1], draw(model, waveforms[0], np.stack(waveforms[1:]), [int(word) - 1 for word in matched])


@torch.inference_mode()
def draw(model: EncoderMaskerDecoder, mixture: np.ndarray, sources: np.ndarray, matched: Sequence[int]) -> Drawn:
    """Return what a model makes of a mixture, with latents sampled from seed 0.

    Args:
        model: on the CPU.
        mixture: (T,).
        sources: (m, T).
        matched: the hypothesis of each source.
    """
    model.eval()
    generator = torch.Generator().manual_seed(0)
    separation = model(torch.from_numpy(mixture)[None], generator, sample=True)
    z, masks = (separation.extras.get(name) for name in ("encoding_sample", "mask_sample"))
    z = separation.encoding.mean if z is None else z
    masks = separation.masks.mean if masks is None else masks
    masked = model.filterbank.apply_mask(masks, z)
    chosen = list(matched)
    estimates = separation.estimates[0, chosen].numpy()
    # A cost that ignores levels leaves them open: those nearest to the sources.
    levels = (estimates * sources).sum(1, keepdims=True) / np.square(estimates).sum(1, keepdims=True).clip(1e-12)
    return Drawn(
        model.sample_rate,
        model.filterbank.stride,
        mixture,
        sources,
        levels * estimates,
        _decibels(_absolute(model, z)[0]),
        _absolute(model, masks)[0, chosen],
        _decibels(_absolute(model, masked)[0, chosen]),
    )


def _absolute(model: EncoderMaskerDecoder, values: Tensor) -> np.ndarray:
    """(..., K, F) moduli: of an STFT, real and imaginary parts are halves of the dimensions."""
    bank = model.filterbank
    if isinstance(bank, STFTFilterbank) and values.shape[-2] == bank.full_dim:
        real, imaginary = values.chunk(2, dim=-2)
        return torch.hypot(real, imaginary).numpy()
    return values.abs().numpy()


def _decibels(values: np.ndarray) -> np.ndarray:
    return 20 * np.log10(values + 1e-8)


def encodings_figure(drawn: Drawn) -> Figure:
    """Return a figure with a column for the mixture and for each source: spectrogram, spectrogram of the estimate,
    encoding or masked encoding, and waveforms of estimate and truth."""
    count = len(drawn.sources)
    figure = Figure(figsize=(3.0 * (1 + count), 6.2), layout="constrained")
    grid = figure.subplots(5, 1 + count, squeeze=False)
    times = slice(0, len(drawn.mixture) / drawn.sample_rate)
    loudest = float(drawn.encoding.max())
    for place, column in enumerate(grid.T):
        truth = drawn.mixture if place == 0 else drawn.sources[place - 1]
        column[0].set_title("mixture" if place == 0 else f"source {place}", fontsize=10)
        _spectrogram(column[0], truth, drawn.sample_rate)
        _image(column[2], drawn.encoding if place == 0 else drawn.masked[place - 1], times, loudest)
        _waveform(column[4], truth, drawn.sample_rate, "black")
        if place:
            _spectrogram(column[1], drawn.estimates[place - 1], drawn.sample_rate)
            _waveform(column[3], drawn.estimates[place - 1], drawn.sample_rate, COLORS[0])
        else:
            column[1].set_axis_off()
            column[3].set_axis_off()
    labels = ("truth [kHz]", "estimate [kHz]", "encoding, dimension", "estimate", "truth")
    for row, label in zip(grid, labels, strict=True):
        row[0 if label not in ("estimate [kHz]", "estimate") else 1].set_ylabel(label, fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("time [s]", fontsize=9)
    return figure


def masks_figure(drawn: Drawn) -> Figure:
    """Return a figure of the loudest excerpt: mixture, encoding, each source's mask, and estimates beside the truth."""
    count = len(drawn.sources)
    length = max(round(_EXCERPT_SECONDS * drawn.sample_rate), _EXCERPT_FRAMES * drawn.stride)
    length = min(length, len(drawn.mixture))
    energy = np.convolve(np.square(drawn.mixture, dtype=np.float64), np.ones(length), "valid")
    start = int(energy.argmax()) // drawn.stride * drawn.stride
    samples = slice(start, start + length)
    frames = slice(start // drawn.stride, (start + length) // drawn.stride + 1)
    times = slice(start / drawn.sample_rate, (start + length) / drawn.sample_rate)
    figure = Figure(figsize=(2.9 * (3 + count), 3.0), layout="constrained")
    axes = figure.subplots(1, 3 + count)
    _waveform(axes[0], drawn.mixture[samples], drawn.sample_rate, "black", times.start)
    axes[0].set_title("mixture", fontsize=10)
    _image(axes[1], drawn.encoding[:, frames], times, float(drawn.encoding.max()))
    axes[1].set_title("encoding", fontsize=10)
    most = float(np.percentile(drawn.masks, 99.5))
    for place, mask in enumerate(drawn.masks):
        _image(axes[2 + place], mask[:, frames], times, most, least=0.0, colors="viridis")
        axes[2 + place].set_title(f"mask {place + 1}", fontsize=10)
    peak = 2.2 * float(np.abs(drawn.sources[:, samples]).max())
    for place, (source, estimate) in enumerate(zip(drawn.sources, drawn.estimates, strict=True)):
        _waveform(axes[-1], source[samples] - place * peak, drawn.sample_rate, "black", times.start)
        _waveform(axes[-1], estimate[samples] - place * peak, drawn.sample_rate, COLORS[place], times.start)
    axes[-1].set_title("estimates; black: truth", fontsize=10)
    for one in axes:
        one.set_xlabel("time [s]", fontsize=9)
    return figure


def _spectrogram(axes: Axes, waveform: np.ndarray, sample_rate: int) -> None:
    level = level_db(waveform, sample_rate)
    draw_spectrogram(axes, level, len(waveform) / sample_rate, sample_rate, float(level.max()), _SHOWN_DB)


def _image(
    axes: Axes, values: np.ndarray, times: slice, most: float, least: float | None = None, colors: str = "magma"
) -> None:
    """Draw values (K, F), the first dimension at the bottom; by default levels in dB below the highest."""
    lowest = most - _SHOWN_DB if least is None else least
    extent = (times.start, times.stop, 0, len(values))
    axes.imshow(values, origin="lower", aspect="auto", cmap=colors, vmin=lowest, vmax=most, extent=extent)
    axes.set(yticks=[])


def _waveform(axes: Axes, waveform: np.ndarray, sample_rate: int, color: str, start: float = 0.0) -> None:
    times = start + np.arange(len(waveform)) / sample_rate
    axes.plot(times, waveform, color=color, linewidth=0.7)
    axes.set(yticks=[], xlim=(times[0], times[-1]))
