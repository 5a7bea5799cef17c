"""Figures draw their input, in every odd case, and do not touch pyplot."""

import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from sepkit.evaluation.run_folder import Curve, TrainingLog
from sepkit.reporting import curve_figures, figures

from ..conftest import training_records


def ink(figure: Figure) -> float:
    """The share of pixels that are not white."""
    figure.set_dpi(50)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return float((np.asarray(canvas.buffer_rgba())[..., :3] < 250).any(axis=-1).mean())


SCORES = {"a": np.arange(20.0), "b": np.append(np.arange(5.0), np.nan), "none": np.full(3, np.nan), "one": [1.0]}
RATES = np.array([3.0, 1.0, 2.0, 4.0])
LOW_NOISE = (np.array([1.0, 2.0]), np.array([np.nan, np.nan]))
BOUNDS = {"test": (RATES, np.array([-3.0, -1.0, -5.0, -2.0])), "test_noise_low": LOW_NOISE}
PANELS = {"blr_nll_nats_per_sample": BOUNDS, "si_sdr_db": {"test": (RATES, np.array([9.0, 1.0, 7.0, np.nan]))}}
CURVE = Curve("rate_nats_per_dimension", PANELS)
LOG = TrainingLog(training_records())
SIGNAL = np.sin(np.arange(4000) * 0.3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: figures.score_distributions(SCORES), lambda: figures.score_distributions({}),
        lambda: curve_figures.score_boxes(SCORES, "SI-SDR"),
        lambda: figures.input_output_scatter({"a": (np.arange(5.0), np.arange(5.0)), "none": ([np.nan], [1.0])}),
        lambda: figures.predicted_scatter({"a": (np.arange(5.0), np.arange(5.0))}),
        lambda: figures.signal_view(np.ones(1), 8000), lambda: figures.signal_view(SIGNAL, 8000),
        lambda: figures.signal_view(np.zeros(100), 8000),
        lambda: figures.training_curves({"a": LOG, "empty": TrainingLog([])}, "loss", ["train_loss", "dev_loss"]),
        lambda: curve_figures.rate_distortion_curve(CURVE),
    ],
)  # fmt: skip
def test_figures_have_something_to_see(make) -> None:
    figure = make()
    assert isinstance(figure, Figure) and ink(figure) > 0.01


def test_pyplot_is_left_alone() -> None:
    figures.score_distributions(SCORES)
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_histograms_are_shares_of_each_run() -> None:
    axes = figures.score_distributions({"a": np.arange(10.0), "b": np.zeros(3)}).axes[0]
    heights = [patch.get_xy()[:, 1] for patch in axes.patches if hasattr(patch, "get_xy") and patch.get_fill() is False]
    bars = [container for container in axes.containers if len(container) > 1]
    assert [sum(bar.get_height() for bar in container) for container in bars] == pytest.approx([100, 100]), heights


def test_rate_distortion_has_running_means_in_order_of_rate_and_a_star_at_the_best() -> None:
    nll, si_sdr = curve_figures.rate_distortion_curve(CURVE).axes
    line, dots, star, *_ = nll.lines
    np.testing.assert_allclose(line.get_xydata(), [[1, -3], [2, -3], [3, -10 / 3], [4, -2.5]])
    np.testing.assert_array_equal(dots.get_xydata(), [[1, -1], [2, -5], [3, -3], [4, -2]])
    # Of a negative log likelihood the least is the best, of SI-SDR the most.
    assert star.get_xydata().tolist() == [[2, -5]] and si_sdr.lines[2].get_xydata().tolist() == [[3, 9]]
    assert len(nll.lines) == 5  # nothing is the best of a condition that was not measured
    assert si_sdr.lines[0].get_ydata().tolist() == pytest.approx([4, 17 / 3, 8, 9])
    assert nll.get_xlabel() == "rate [nats per dimension]" and si_sdr.get_ylabel() == "SI-SDR [dB]"


def test_waveform_keeps_a_lonely_click() -> None:
    waveform = np.zeros(100_000)
    waveform[54_321] = 1.0
    (band,) = figures.signal_view(waveform, 8000).axes[0].collections
    assert band.get_paths()[0].vertices[:, 1].max() == 1.0


def test_spectrogram_shows_the_tone_where_it_is() -> None:
    image = figures.signal_view(np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000), 8000).axes[1].images[0]
    left, right, low, high = image.get_extent()
    levels = np.asarray(image.get_array())
    loudest = (levels.mean(axis=1).argmax() + 0.5) / levels.shape[0] * (high - low)
    assert loudest == pytest.approx(1.0, abs=0.04) and (left, right) == (0, 1)


def test_training_panels_by_what_the_log_has() -> None:
    panels = figures.training_panels([LOG])
    assert panels["loss"] == ["train_loss", "dev_loss"]
    assert panels["temperature"] == ["temperature"] and panels["entropy [nats]"] == ["train_entropy"]
    assert set(panels) == {"loss", "SI-SDR [dB]", "learning rate", "temperature", "entropy [nats]", "gradient norm"}
