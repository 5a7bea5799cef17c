"""t-SNE of embeddings and histograms of posteriors."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.config import SpeakerEncoderConfig
from sepkit.models import save_model
from sepkit.models.speaker_encoder import SpeakerEncoder

SCRIPT = Path(__file__).resolve().parents[3] / "egs/speaker_clustering/local/draw.py"
specification = importlib.util.spec_from_file_location("draw", SCRIPT)
drawing = importlib.util.module_from_spec(specification)
sys.modules["draw"] = drawing
specification.loader.exec_module(drawing)


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    config = SpeakerEncoderConfig(channels=8, pooled=8, dimensions=4, experts=3, gate="fixed")
    return save_model(SpeakerEncoder(config), tmp_path / "mice", {"temperatures": [0.3, 0.3]})


def test_encoders_are_drawn_side_by_side(encoder: Path, mixture: Path, voices: Path, tmp_path: Path) -> None:
    table = voices_table(voices, tmp_path)
    command = [sys.executable, SCRIPT, table, tmp_path / "out", "0", encoder, mixture]
    subprocess.run([str(word) for word in command], check=True)
    for name in ("tsne", "posteriors"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    collection = drawing.read_collection(table)
    assert drawing.draw([str(encoder)], collection, tmp_path / "one", 0) == [tmp_path / "one" / "tsne.png"]


def voices_table(voices: Path, folder: Path) -> Path:
    """A collection of the voices."""
    rows = [f"{path},0,1.8,{path.parent.name}," for path in sorted(voices.glob("*/*.wav"))]
    table = folder / "voices.csv"
    table.write_text("path,start_seconds,duration_seconds,speaker,confidence\n" + "\n".join(rows) + "\n")
    return table


def test_histograms_are_shares_of_all_probabilities_and_sizes_of_clusters() -> None:
    sharp = np.eye(3)[[0, 0, 0, 1, 2]] * 0.94 + 0.02
    posteriors = {"untrained": np.full((5, 3), 1 / 3), "trained": sharp}
    drawn = drawing.Drawn(np.zeros((5, 2)), sharp.argmax(1), 100.0, posteriors)
    figure = drawing.posterior_figure({"mice": drawn}, np.array([2, 2, 1]))
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights[:10] == pytest.approx([0, 0, 0, 1] + [0] * 6)
    assert heights[10:] == pytest.approx([10 / 15] + [0] * 8 + [5 / 15])
    assert [bar.get_height() for bar in figure.axes[1].patches] == [2, 2, 1, 3, 1, 1]
