"""Draw README's figure: the mixture of two recordings, and the shipped model's estimates.

python -m tools.readme_figure ONE.flac OTHER.flac --out docs/images/separated.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import sepkit
from sepkit.data import audio
from sepkit.files import atomic_output
from sepkit.objectives.assignment import PIT
from sepkit.objectives.costs import pairwise_neg_si_sdr
from sepkit.reporting.figures import draw_spectrogram, level_db

SECONDS = 4


def main() -> None:
    """Separate the sum of the recordings at equal level, and draw mixture and estimates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs=2, type=Path, help="one speaker in each")
    parser.add_argument("--out", type=Path, required=True, help="PNG file")
    options = parser.parse_args()
    separator = sepkit.load_model()
    rate = separator.sample_rate
    sources = np.stack([_equal_level(path, rate) for path in options.recordings])
    estimates = torch.as_tensor(separator.separate(sources.sum(0), rate).estimates)[None]
    references = torch.from_numpy(sources)[None]
    costs = pairwise_neg_si_sdr(estimates, references)
    order = PIT().weights(costs)[0].argmax(0)
    improved = pairwise_neg_si_sdr(references.sum(1, keepdim=True), references)[0, 0] - costs[0, order, [0, 1]]
    signals = {"mixture": sources.sum(0)} | {
        f"estimate {k + 1}: SI-SDR improved by {improved[k]:.1f} dB": estimates[0, order[k]].numpy() for k in range(2)
    }
    figure = Figure(figsize=(8, 5), layout="constrained")
    rows = figure.subplots(len(signals), sharex=True)
    levels = [level_db(waveform, rate) for waveform in signals.values()]
    loudest = max(level.max() for level in levels)
    for axes, name, level in zip(rows, signals, levels, strict=True):
        draw_spectrogram(axes, level, SECONDS, rate, loudest, 60)
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_ylabel("[kHz]")
    rows[-1].set_xlabel("time [s]")
    with atomic_output(options.out) as temporary:
        figure.savefig(temporary, format="png", dpi=90)


def _equal_level(path: Path, rate: int) -> np.ndarray:
    waveform = audio.read(path, sample_rate=rate)
    waveform = np.asarray(waveform, dtype=np.float32).reshape(-1)[: SECONDS * rate]
    return 0.05 * waveform / waveform.std()


if __name__ == "__main__":
    main()
