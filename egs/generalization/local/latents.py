"""Figures 3, 4 and 5 of the thesis (appendix B): what the latents of variational models show.

    latents.py evidence FILE.md RUN ...    the evidence of mixtures against the distortion of their separation
    latents.py encodings FILE.md RUN       encodings and masks of one mixture

A run is a folder that `sepkit train` wrote, evaluated with `--metrics si_sdr blr`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from sepkit.cleaning import escaped
from sepkit.data import audio
from sepkit.data.mixing import mix_entry
from sepkit.evaluation.calibration import agreement
from sepkit.evaluation.labels import MIXTURE_ELBO
from sepkit.evaluation.run_folder import Run, load_run
from sepkit.evaluation.statistics import drawn_speakers
from sepkit.files import write_text
from sepkit.models import EncoderMaskerDecoder, load_pretrained
from sepkit.models.stft_filterbank import STFTFilterbank
from sepkit.reporting.examples import model_path
from sepkit.reporting.figures import COLORS, draw_spectrogram, level_db, panels, save_png
from sepkit.reporting.seeds import group_runs
from sepkit.reporting.tables import INTERVALS, Table

_DISTORTION = "blr_nats_per_sample"
_BOUND = "negative bound on the mixture's evidence [nats per sample]"
# A few mixtures with hardly any evidence would push all others together.
_SHOWN_PERCENT = 98
# Least length of the excerpt, and its number of frames.
_EXCERPT_SECONDS, _EXCERPT_FRAMES = 0.05, 16
_SHOWN_DB = 60.0


def draw_evidence(runs: Sequence[Run], path: Path) -> str:
    """Write FILE_evidence.png beside FILE.md, and return Markdown about evidence and distortion.

    Every run and test set has a row: the rank correlation over mixtures of the negative evidence lower bound of the
    mixture with the distortion of its separation (the negative log evidence of the references), with its interval.
    Evaluations that lack either, or have fewer than three mixtures, are left out.

    Source: thesis, appendix B, section 4.3 and figure 3.
    """
    found: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    rows = []
    for run in runs:
        for evaluation in run.evaluations:
            bound, distortion = -evaluation.scores(MIXTURE_ELBO), -evaluation.scores(_DISTORTION)
            both = np.flatnonzero(np.isfinite(bound + distortion))
            if len(both) < 3:
                continue
            bound, distortion = bound[both], distortion[both]
            found.setdefault(evaluation.name, {})[run.name] = bound, distortion
            speakers = evaluation.speakers(both)
            known = agreement(bound, distortion, speakers=speakers)
            interval = "" if known.spearman_ci95 is None else "{:.2f} to {:.2f}".format(*known.spearman_ci95)
            correlation = "" if known.spearman is None else f"{known.spearman:.2f}"
            names = [evaluation.name, run.name, len(both), drawn_speakers(speakers)]
            rows.append([*names, *(f"{values.mean():.3f}" for values in (bound, distortion)), correlation, interval])
    rows.sort(key=lambda row: list(found).index(row[0]))
    group_of = {run.name: group.name for group in group_runs(runs) for run in group.runs}
    file = save_png(evidence_figure(found, group_of), path, "evidence")
    header = ["test set", "model", "mixtures", "speakers", _BOUND, "distortion [nats per sample]", "rank correlation"]
    table = Table([*header, "95 % interval"], rows).markdown(words=(0, 1))
    return (
        f"{table}\n![Distortion against the bound on the mixture's evidence]({file})\n\nA dot is a mixture, a color a "
        "model with all its seeds. Lower is better on both axes. Of the bounds, the "
        f"{100 - _SHOWN_PERCENT} % that are largest are left out of the figure. {INTERVALS}\n"
    )


def evidence_figure(
    found: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]], group_of: Mapping[str, str]
) -> Figure:
    """Return a figure with a panel per test set, a dot per mixture, a color per group of models.

    Args:
        found: Test set -> model -> negative bounds and distortions of its mixtures, (N,) each.
        group_of: Model -> name of its group.
    """
    figure = panels(_BOUND, ["distortion [nats per sample]"] * len(found))
    groups = dict.fromkeys(group_of[name] for models in found.values() for name in models)
    colors = {group: COLORS[k % len(COLORS)] for k, group in enumerate(groups)}
    for axes, (test_set, models) in zip(figure.axes, found.items(), strict=True):
        axes.set_title(test_set, fontsize=10)
        most = np.percentile(np.concatenate([bound for bound, _ in models.values()]), _SHOWN_PERCENT)
        for name, (bound, distortion) in models.items():
            shown, color = bound <= most, colors[group_of[name]]
            axes.scatter(bound[shown], distortion[shown], s=8, color=color, alpha=0.4, linewidths=0)
    if len(colors) > 1:
        dots = [Line2D([], [], color=color, marker="o", linestyle="", label=name) for name, color in colors.items()]
        figure.axes[0].legend(handles=dots, frameon=False, fontsize=9)
    return figure


@dataclass
class Drawn:
    """What a model makes of a mixture.

    Args:
        sample_rate: Sample rate of the model, Hz.
        stride: Number of samples between frames.
        mixture: Waveform of the mixture, (T,).
        sources: Waveforms of the speakers, (m, T).
        estimates: Estimate of each source, (m, T), at the level nearest to the source.
        encoding: Absolute values of a sample of the encoding, (K, F) dB.
        masks: Absolute values of a sample of each source's mask, (m, K, F).
        masked: Absolute values of the product of both, (m, K, F) dB.
    """

    sample_rate: int
    stride: int
    mixture: np.ndarray
    sources: np.ndarray
    estimates: np.ndarray
    encoding: np.ndarray
    masks: np.ndarray
    masked: np.ndarray


def draw_encodings(run: Run, path: Path) -> str:
    """Write FILE_encodings.png and FILE_masks.png beside FILE.md, and return Markdown that shows them.

    The mixture is that of median SI-SDR improvement in the run's first evaluation.

    Source: thesis, appendix B, supplementary C, figures 4 and 5.
    """
    evaluation = next(e for e in run.evaluations if "si_sdri_db" in e.metrics)
    scores = evaluation.scores("si_sdri_db")
    place = int(np.argsort(scores, kind="stable")[(int(np.isfinite(scores).sum()) - 1) // 2])
    key, matched = evaluation.keys()[place], evaluation.rows[place]["assignment"].split()
    model, entry = load_pretrained(model_path(evaluation.summary["model"], evaluation)), evaluation.entries[key]
    mixed = mix_entry(entry)
    waveforms = [audio.resample(w, entry.sample_rate, model.sample_rate) for w in (mixed.mixture, *mixed.sources)]
    drawn = draw(model, waveforms[0], np.stack(waveforms[1:]), [int(word) - 1 for word in matched])
    whole = save_png(encodings_figure(drawn), path, "encodings", dpi=75)
    excerpt = save_png(masks_figure(drawn), path, "masks", dpi=100)
    title = escaped(f"{run.name}, {evaluation.name}, mixture {key[1]}")
    return (
        f"![Encodings of {title}]({whole})\n\n![Masks of {title}]({excerpt})\n\n"
        "Encodings and masks are samples of their posteriors where these are random, absolute values.\n"
    )


@torch.inference_mode()
def draw(model: EncoderMaskerDecoder, mixture: np.ndarray, sources: np.ndarray, matched: Sequence[int]) -> Drawn:
    """Return what a model makes of a mixture, with latents sampled from seed 0.

    Args:
        model: Model on the CPU; it is set to evaluation mode.
        mixture: Waveform of the mixture, (T,).
        sources: Waveforms of the speakers, (m, T).
        matched: Number of the hypothesis of each source, from 0.
    """
    separation = model.eval()(torch.from_numpy(mixture)[None], torch.Generator().manual_seed(0), sample=True)
    z = separation.extras.get("encoding_sample", separation.encoding.mean)
    masks = separation.extras.get("mask_sample", separation.masks.mean)
    chosen = list(matched)

    def modulus(values: Tensor) -> np.ndarray:
        """Return (..., K, F) moduli: of an STFT, real and imaginary parts are halves of the dimensions."""
        if isinstance(model.filterbank, STFTFilterbank) and values.shape[-2] == model.filterbank.full_dim:
            return torch.hypot(*values.chunk(2, dim=-2)).numpy()
        return values.abs().numpy()

    estimates = separation.estimates[0, chosen].numpy()
    # A cost that ignores levels leaves them open: those nearest to the sources.
    levels = (estimates * sources).sum(1, keepdims=True) / np.square(estimates).sum(1, keepdims=True).clip(1e-12)
    encoding, masked = (20 * np.log10(modulus(x)[0] + 1e-8) for x in (z, model.filterbank.apply_mask(masks, z)))
    stride = model.filterbank.stride
    images = encoding, modulus(masks)[0, chosen], masked[chosen]
    return Drawn(model.sample_rate, stride, mixture, sources, levels * estimates, *images)


def encodings_figure(drawn: Drawn) -> Figure:
    """Return a figure with a column for the mixture and for each source.

    Its rows are the spectrogram, the spectrogram of the estimate, the encoding or masked encoding, and the waveforms of
    estimate and truth.
    """
    rate, count = drawn.sample_rate, 1 + len(drawn.sources)
    figure = Figure(figsize=(3.0 * count, 6.2), layout="constrained")
    grid = figure.subplots(5, count, squeeze=False)
    times = (0, len(drawn.mixture) / rate)
    for place, column in enumerate(grid.T):
        truth = drawn.mixture if place == 0 else drawn.sources[place - 1]
        column[0].set_title("mixture" if place == 0 else f"source {place}", fontsize=10)
        _spectrogram(column[0], truth, rate)
        image = drawn.encoding if place == 0 else drawn.masked[place - 1]
        _image(column[2], image, times, float(drawn.encoding.max()))
        _waveform(column[4], truth, rate, "black")
        if place:
            _spectrogram(column[1], drawn.estimates[place - 1], rate)
            _waveform(column[3], drawn.estimates[place - 1], rate, COLORS[0])
        else:
            column[1].set_axis_off()
            column[3].set_axis_off()
        column[4].set_xlabel("time [s]", fontsize=9)
    labels = ("truth [kHz]", "estimate [kHz]", "encoding, dimension", "estimate", "truth")
    for row, (axes, label) in enumerate(zip(grid, labels, strict=True)):
        axes[1 if row in (1, 3) else 0].set_ylabel(label, fontsize=9)
    return figure


def masks_figure(drawn: Drawn) -> Figure:
    """Return a figure of the loudest excerpt: mixture, encoding, each source's mask, and estimates beside the truth."""
    rate, stride, count = drawn.sample_rate, drawn.stride, len(drawn.sources)
    length = min(max(round(_EXCERPT_SECONDS * rate), _EXCERPT_FRAMES * stride), len(drawn.mixture))
    energy = np.convolve(np.square(drawn.mixture, dtype=np.float64), np.ones(length), "valid")
    start = int(energy.argmax()) // stride * stride
    samples, frames = slice(start, start + length), slice(start // stride, (start + length) // stride + 1)
    times = (start / rate, (start + length) / rate)
    figure = Figure(figsize=(2.9 * (3 + count), 3.0), layout="constrained")
    axes = figure.subplots(1, 3 + count)
    titles = ["mixture", "encoding", *(f"mask {k + 1}" for k in range(count)), "estimates; black: truth"]
    for one, title in zip(axes, titles, strict=True):
        one.set_title(title, fontsize=10)
        one.set_xlabel("time [s]", fontsize=9)
    _waveform(axes[0], drawn.mixture[samples], rate, "black", times[0])
    _image(axes[1], drawn.encoding[:, frames], times, float(drawn.encoding.max()))
    most = float(np.percentile(drawn.masks, 99.5))
    peak = 2.2 * float(np.abs(drawn.sources[:, samples]).max())
    for place, (source, estimate) in enumerate(zip(drawn.sources, drawn.estimates, strict=True)):
        _image(axes[2 + place], drawn.masks[place, :, frames], times, most, least=0.0, colors="viridis")
        _waveform(axes[-1], source[samples] - place * peak, rate, "black", times[0])
        _waveform(axes[-1], estimate[samples] - place * peak, rate, COLORS[place], times[0])
    return figure


def _spectrogram(axes: Axes, waveform: np.ndarray, sample_rate: int) -> None:
    level = level_db(waveform, sample_rate)
    draw_spectrogram(axes, level, len(waveform) / sample_rate, sample_rate, float(level.max()), _SHOWN_DB)


def _image(
    axes: Axes,
    values: np.ndarray,
    times: tuple[float, float],
    most: float,
    least: float | None = None,
    colors: str = "magma",
) -> None:
    """Draw values (K, F), the first dimension at the bottom; by default levels in dB below the highest."""
    lowest, extent = most - _SHOWN_DB if least is None else least, (*times, 0, len(values))
    axes.imshow(values, origin="lower", aspect="auto", cmap=colors, vmin=lowest, vmax=most, extent=extent)
    axes.set(yticks=[])


def _waveform(axes: Axes, waveform: np.ndarray, sample_rate: int, color: str, start: float = 0.0) -> None:
    times = start + np.arange(len(waveform)) / sample_rate
    axes.plot(times, waveform, color=color, linewidth=0.7)
    axes.set(yticks=[], xlim=(times[0], times[-1]))


if __name__ == "__main__":
    what, out, *folders = sys.argv[1:]
    loaded = [load_run(folder) for folder in folders]
    write_text(out, draw_evidence(loaded, Path(out)) if what == "evidence" else draw_encodings(loaded[0], Path(out)))
    print(out)
