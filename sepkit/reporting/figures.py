"""Figures of scores, signals and training: each function returns a matplotlib figure and does not touch pyplot.

Text and lines are black, backgrounds can be saved as transparent, and the colors of data are legible on white and on
black.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from PIL import Image

from sepkit.evaluation.labels import label_of
from sepkit.evaluation.run_folder import TrainingLog
from sepkit.files import atomic_output

COLORS = ("#3d86c6", "#d9792b", "#3f9e6b", "#b566b8", "#c9524f", "#8a8f3a", "#4aa3a8", "#8b7bd0")
"""Of data, in order of use; each has a contrast of at least 3 to 1 with white and with black."""

SIGNAL_COLOR = COLORS[0]
MIXTURE_COLOR, REFERENCE_COLOR = COLORS[7], "#808890"

SPLIT_COLORS = {"training": COLORS[0], "validation": COLORS[1]}
"""Split -> color of its curves in every panel of one run's training; others are gray."""

TRAINING_PANELS = {
    "loss": ("train_loss", "dev_loss"),
    "SI-SDR [dB]": ("dev_si_sdr_db", "train_si_sdr_db"),
    "learning rate": ("learning_rate",),
    "temperature": ("temperature", "epsilon"),
    "entropy [nats]": ("entropy",),
    "rate [nats]": ("rate", "kl"),
    "gradient norm": ("gradient_norm",),
}
"""Axis label -> the quantities of a training log that share it; names may be preceded by "train_" or "dev_"."""

# Not drawn: clocks, and the improvement, which is the SI-SDR minus a constant.
_NO_PANEL = frozenset({"seconds", "mixtures_per_second", "dev_si_sdri_db"})
_MAX_POINTS_AS_LINES = 3000
# The colors of a spectrogram go down to this far below its loudest bin.
_RANGE_DB = 70.0
_STYLES = ("-", "--", ":", "-.")


def score_distributions(scores: Mapping[str, ArrayLike], label: str = "SI-SDR improvement [dB]") -> Figure:
    """Return histograms of scores over mixtures, one per name, on shared bins; each mean is a dashed line.

    Args:
        scores: (N,) each, by name.
        label: Label of the scores.
    """
    figure = panels(label, ["mixtures [%]"])
    (axes,) = figure.axes
    kept = {name: _finite(values) for name, values in scores.items()}
    everything = np.concatenate([*kept.values(), np.empty(0)])
    if everything.size:
        count = min(40, max(12, round(3 * len(everything) ** (1 / 3))))
        bins = list(MaxNLocator(count, steps=[1, 2, 5, 10]).tick_values(everything.min(), everything.max()))
        for color, (name, values) in _colored(kept):
            if len(values):
                weights = np.full(len(values), 100 / len(values))
                axes.hist(values, bins=bins, weights=weights, color=color, alpha=0.25 if len(kept) < 3 else 0.1)
                axes.hist(values, bins=bins, weights=weights, color=color, histtype="step", linewidth=1.6, label=name)
                axes.axvline(float(values.mean()), color=color, linestyle="--", linewidth=1.4)
    legend(axes)
    return figure


Points = Mapping[str, tuple[ArrayLike, ArrayLike]]
"""name -> ((N,) x, (N,) y)"""


def input_output_scatter(points: Points) -> Figure:
    """Return a figure of SI-SDR after separation over that of the mixture, dB; on the dashed line nothing was gained.

    Args:
        points: SI-SDR of the mixtures and of the estimates.
    """
    return _scatter(points, "SI-SDR of the mixture [dB]", "SI-SDR of the estimates [dB]", "no gain")


def predicted_scatter(points: Points) -> Figure:
    """Return a figure of measured over predicted scores, dB; on the dashed line the model was right.

    Args:
        points: predicted, measured.
    """
    return _scatter(points, "predicted SI-SDR [dB]", "measured SI-SDR [dB]", "as predicted")


def _scatter(points: Points, x_label: str, y_label: str, on_line: str) -> Figure:
    figure = panels(x_label, [y_label])
    (axes,) = figure.axes
    drawn = []
    for color, (name, (before, after)) in _colored(points):
        x, y = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
        known = np.isfinite(x) & np.isfinite(y)
        x, y = x[known], y[known]
        axes.scatter(
            x, y, s=14, color=color, alpha=0.55, linewidths=0, label=name, rasterized=len(x) > _MAX_POINTS_AS_LINES
        )
        drawn.append(x)
    everything = np.concatenate([*drawn, np.empty(0)])
    if everything.size:
        ends = np.array([everything.min(), everything.max()])
        # Mixtures of equal levels differ by tenths of a dB; an axis of only that range would exaggerate them.
        axes.set_xlim(*np.array([-1, 1]) * max(0.3, 0.55 * np.ptp(ends)) + ends.mean())
        axes.plot(ends, ends, color="black", alpha=0.6, linestyle="--", linewidth=1.2)
        axes.annotate(on_line, (ends[1], ends[1]), xytext=(-2, 5), textcoords="offset points", ha="right", fontsize=9)
    legend(axes)
    return figure


def signal_view(
    waveform: ArrayLike,
    sample_rate: int,
    *,
    color: str = SIGNAL_COLOR,
    peak: float | None = None,
    top_db: float | None = None,
) -> Figure:
    """Return a figure of a waveform above its spectrogram.

    Args:
        waveform: (T,).
        sample_rate: Hz.
        color: Color of the waveform.
        peak: upper end of the waveform's axis, by default its own peak; signals to compare need the same.
        top_db: level of the brightest color, dB, by default the loudest bin's; signals to compare need the same.
    """
    samples = np.asarray(waveform)
    figure = Figure(figsize=(4.8, 2.5))
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(1, 2.1))
    figure.subplots_adjust(left=0.1, right=0.99, top=0.98, bottom=0.17, hspace=0.08)
    if len(samples):
        # The lowest and highest sample of each of up to 500 stretches are all that a screen can show.
        starts = np.unique(np.linspace(0, len(samples), 501)[:-1].astype(int))
        low, high = np.minimum.reduceat(samples, starts), np.maximum.reduceat(samples, starts)
        upper.fill_between(starts / sample_rate, low, high, color=color, linewidth=0.6)
        upper.set_xlim(0, len(samples) / sample_rate)
    limit = peak or float(np.abs(samples).max(initial=0)) or 1.0
    upper.set(ylim=(-limit, limit), yticks=[])
    upper.spines[["top", "right", "left"]].set_visible(False)
    upper.tick_params(axis="x", length=0, labelbottom=False)
    level = level_db(samples, sample_rate)
    top = float(level.max()) if top_db is None else top_db
    draw_spectrogram(lower, level, len(samples) / sample_rate, sample_rate, top, _RANGE_DB)
    lower.set(xlabel="time [s]", ylabel="[kHz]")
    return figure


def training_panels(logs: Iterable[TrainingLog]) -> dict[str, list[str]]:
    """Return axis label -> quantities that any of the logs holds; unknown kinds have a panel each.

    Left out are a term of the objective that is all of the loss, quantities that never change, such as the entropy of a
    hard matching, and those equal to an earlier one.
    """
    logs = list(logs)
    names = list(dict.fromkeys(name for log in logs for kind in ("epoch", "step") for name in log.names(kind)))
    panels: dict[str, list[str]] = {}
    for label, known in TRAINING_PANELS.items():
        wanted = {*known, *(f"{split}_{name}" for split in ("train", "dev") for name in known)}
        found = [name for name in names if name in wanted]
        if found:
            panels[label] = found
    taken = {name for found in panels.values() for name in found} | _NO_PANEL
    for name in names:
        if name.startswith("train_") and all(_equal(log, name, "train_loss") for log in logs):
            continue
        stem = name.removeprefix("train_").removeprefix("dev_")
        before = [known for known in names[: names.index(name)] if known.partition("_")[0] == name.partition("_")[0]]
        if all(_never_changes(log, name) or any(_equal(log, name, known) for known in before) for log in logs):
            continue
        if name not in taken:
            hypothesis = stem.removeprefix("usage_")
            label = label_of(stem) if hypothesis == stem else f"share of sources won by hypothesis {hypothesis}"
            panels.setdefault(label, []).append(name)
    return panels


def training_curves(
    logs: Mapping[str, TrainingLog], label: str = "loss", names: Sequence[str] = ("train_loss", "dev_loss")
) -> Figure:
    """Return a figure of quantities of training over the optimizer's steps.

    A quantity that is recorded both every few steps and every epoch is drawn by epoch, the steps faintly behind.

    Args:
        logs: run -> log.
        label: Label of the vertical axis.
        names: Names of the quantities, see `training_panels`.
    """
    figure = panels("step", [label])
    (axes,) = figure.axes
    splits = [{"train": "training", "dev": "validation"}.get(name.partition("_")[0], "") for name in names]
    for place, (run, log) in enumerate(logs.items()):
        for name, split in sorted(zip(names, splits, strict=True), key=lambda pair: pair[1]):
            text = " ".join([run] * (len(logs) > 1) + [split or name.replace("_", " ")] * (len(names) > 1)) or run
            # Several quantities of one split, such as temperature and epsilon, differ by style.
            style = _STYLES[splits[: names.index(name)].count(split) % len(_STYLES)]
            color = SPLIT_COLORS.get(split, REFERENCE_COLOR)
            if len(logs) > 1:
                color = COLORS[place % len(COLORS)]
                style = "--" if split == "validation" else style
            _draw_log(axes, log, name, color, style, text)
    if label == "learning rate":
        axes.set_yscale("log")
    legend(axes)
    return figure


def curves(series: Mapping[str, tuple[ArrayLike, ArrayLike]], x_label: str, y_label: str) -> Figure:
    """Return a figure of lines with markers, one per name.

    Args:
        series: name -> (R,) x and (R,) y.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
    """
    figure = panels(x_label, [y_label])
    (axes,) = figure.axes
    for color, (name, (x, y)) in _colored(series):
        axes.plot(np.asarray(x), np.asarray(y), color=color, marker="o", markersize=4, linewidth=1.6, label=name)
    legend(axes)
    return figure


def panels(x_label: str, y_labels: Sequence[str]) -> Figure:
    """Return a figure of empty axes side by side, one per label of a vertical axis, at least one."""
    figure = Figure(figsize=(4.8 * max(1, len(y_labels)), 3.2), layout="constrained")
    for axes, label in zip(np.atleast_1d(figure.subplots(1, max(1, len(y_labels)))), y_labels, strict=False):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="black", alpha=0.12, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set(xlabel=x_label, ylabel=label)
    return figure


def save_png(figure: Figure, path: Path, name: str, dpi: int = 160) -> str:
    """Write a figure beside FILE.md as FILE_NAME.png; return the name of the file."""
    return save_figure(figure, path.with_name(f"{path.stem}_{name}.png"), dpi).name


def save_figure(figure: Figure, path: Path, dpi: int = 100) -> Path:
    """Write a figure as a PNG file with a palette, and return its path."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    with atomic_output(path) as temporary:
        temporary.write_bytes(with_palette(drawn, 128))
    return path


def with_palette(image: io.BytesIO, colors: int = 64) -> bytes:
    """Return a PNG image with N colors, which takes a third of the space and is enough for color maps."""
    smaller = io.BytesIO()
    Image.open(image).convert("RGB").quantize(colors, dither=Image.Dither.NONE).save(smaller, "PNG", optimize=True)
    return smaller.getvalue()


def legend(axes: Axes, least: int = 2) -> None:
    """Draw a legend without a frame, if there are as many entries as `least`."""
    if len(axes.get_legend_handles_labels()[1]) >= least:
        axes.legend(frameon=False, fontsize=9)


def _colored(named: Mapping[str, object]) -> list:
    return [(COLORS[place % len(COLORS)], item) for place, item in enumerate(named.items())]


def _equal(log: TrainingLog, name: str, other: str) -> bool:
    return name != other and np.array_equal(log.series(name)[1], log.series(other)[1], equal_nan=True)


def _never_changes(log: TrainingLog, name: str) -> bool:
    """Whether a quantity has the same value in two or more records."""
    values = log.series(name)[1]
    values = values[np.isfinite(values)]
    return len(values) > 1 and bool((values == values[0]).all())


def _draw_log(axes: Axes, log: TrainingLog, name: str, color: str, style: str, label: str) -> None:
    steps, values = log.series(name, "epoch")
    fine_steps, fine_values = log.series(name, "step")
    if not len(steps) and not len(fine_steps):
        return
    if len(steps) > 1 or not len(fine_steps):
        axes.plot(fine_steps, fine_values, style, color=color, alpha=0.3, linewidth=0.9)
        axes.plot(steps, values, style, color=color, linewidth=1.8, marker="o", markersize=3, label=label)
    else:
        axes.plot(fine_steps, fine_values, style, color=color, linewidth=1.6, label=label)


def _finite(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]


def level_db(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return (K, F) level of a spectrogram in dB: windows of 32 ms, about as many frames as a screen can show."""
    from scipy.signal import ShortTimeFFT, get_window

    size = max(2, round(0.032 * sample_rate))
    samples = np.pad(samples, (0, max(0, size - len(samples))))
    hop = max(1, size // 4, len(samples) // 360)
    transform = ShortTimeFFT(np.asarray(get_window("hann", size)), hop, sample_rate, scale_to="magnitude")
    power = np.abs(transform.stft(samples.astype(np.float64), p0=0, p1=-(-len(samples) // hop))) ** 2
    return 10 * np.log10(power + 1e-20)


def draw_spectrogram(
    axes: Axes, level: np.ndarray, duration_seconds: float, sample_rate: int, top: float, range_db: float
) -> None:
    """Draw the level of a spectrogram (K, F), dB, over seconds and kHz, down to `range_db` below `top`."""
    # Steps of 2 dB and unsmoothed pixels take a fraction of the bytes and look the same.
    axes.imshow(
        2 * np.round(level / 2), origin="lower", aspect="auto", cmap="magma", vmin=top - range_db, vmax=top,
        extent=(0, duration_seconds, 0, sample_rate / 2000), interpolation="none",
    )  # fmt: skip
