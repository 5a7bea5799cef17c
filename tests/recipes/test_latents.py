"""Encodings and masks of one mixture, drawn; and the bound on the evidence against distortion, of invented numbers."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from sepkit.config import ModelConfig, STFTFilterbankConfig
from sepkit.evaluation.evaluate import EvaluationOptions, System, evaluate
from sepkit.evaluation.run_folder import load_run
from sepkit.models import build_model, load_pretrained, save_model
from tests.tiny_models import RECURRENT, VARIATIONAL

REPOSITORY = Path(__file__).resolve().parents[2]
specification = importlib.util.spec_from_file_location("latents", REPOSITORY / "egs/generalization/local/latents.py")
latents = importlib.util.module_from_spec(specification)
sys.modules["latents"] = latents
specification.loader.exec_module(latents)


@pytest.mark.parametrize("config", [VARIATIONAL, RECURRENT])
def test_what_is_drawn_is_what_the_model_made(config: ModelConfig) -> None:
    torch.manual_seed(0)
    model = build_model(config).eval()
    sources = np.random.default_rng(0).standard_normal((2, 4000)).astype(np.float32)
    drawn = latents.draw(model, sources.sum(0), sources, [1, 0])
    with torch.inference_mode():
        separation = model(torch.from_numpy(sources.sum(0))[None], torch.Generator().manual_seed(0), sample=True)
    for found, raw, source in zip(drawn.estimates, separation.estimates[0, [1, 0]].numpy(), sources, strict=True):
        level, *_ = np.linalg.lstsq(raw[:, None], source, rcond=None)
        np.testing.assert_allclose(found, level * raw, rtol=1e-3, atol=1e-5)
    z = separation.extras.get("encoding_sample", separation.encoding.mean)[0].abs().numpy()
    np.testing.assert_allclose(drawn.encoding, 20 * np.log10(z + 1e-8), rtol=1e-5, atol=1e-4)
    product = 20 * np.log10(np.abs(drawn.masks) * 10 ** (drawn.encoding / 20) + 1e-8)
    np.testing.assert_allclose(drawn.masked, product, atol=0.01)


def test_bins_of_an_stft_stay_in_their_order() -> None:
    tone = np.sin(2 * np.pi * 1000 / 8000 * np.arange(4000)).astype(np.float32)
    model = build_model(ModelConfig(filterbank=STFTFilterbankConfig(64, 32), masker=RECURRENT.masker))
    drawn = latents.draw(model, tone, np.stack([tone, tone]), [0, 1])
    assert drawn.encoding.shape[0] == 33 and int(drawn.encoding.mean(1).argmax()) == 8


def test_the_mixture_of_median_improvement_is_drawn(corpus: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = save_model(build_model(VARIATIONAL), tmp_path / "exp" / "model")
    separator = load_pretrained(model).eval()

    def separate(mixture: np.ndarray, rate: int) -> np.ndarray:
        with torch.inference_mode():
            return separator(torch.from_numpy(mixture)[None]).estimates[0].numpy()

    out = tmp_path / "exp" / "evaluation"
    evaluate(System(separate, model=str(model)), [corpus.manifest], out, EvaluationOptions(["si_sdr"]))
    text = latents.draw_encodings(load_run(out), tmp_path / "t.md")
    evaluation = load_run(out).evaluations[0]
    median = evaluation.rows[int(np.argsort(evaluation.scores("si_sdri_db"))[2])]["id"]
    assert f"mixture {median}](t_encodings.png)" in text and f"mixture {median}](t_masks.png)" in text
    for file in ("t_encodings.png", "t_masks.png"):
        assert (tmp_path / file).read_bytes().startswith(b"\x89PNG")


def make_run(folder: Path, bounds: list[float | None], evidences: list[float | None]) -> str:
    """An experiment measured on one set: mixtures with a bound on their evidence and that of their references."""
    evaluation = folder / "evaluation" / "test"
    evaluation.mkdir(parents=True)
    score = {"mean": 1.0, "n": 1, "ci95": [1.0, 1.0]}
    (evaluation / "summary.json").write_text(json.dumps({"n_utterances": len(bounds), "metrics": {"si_sdr_db": score}}))
    scores = enumerate(zip(bounds, evidences, strict=True))
    rows = [f"test.jsonl,m{i},{'' if b is None else b},{'' if e is None else e}\n" for i, (b, e) in scores]
    header = "manifest,id,mixture_elbo_nats_per_sample,blr_nats_per_sample\n"
    (evaluation / "utterances.csv").write_text(header + "".join(rows))
    return str(folder)


def test_rank_correlation_of_mixtures_that_have_both(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    bounds = generator.standard_normal(40)
    evidences = bounds + generator.standard_normal(40)
    gamma = make_run(tmp_path / "gamma", [*bounds, None, 3.0], [*evidences, 1.0, None])
    runs = [gamma, make_run(tmp_path / "plain", [None] * 4, [1.0, 2.0, 3.0, 4.0])]
    text = latents.draw_evidence([load_run(run) for run in runs], tmp_path / "table.md")
    (row,) = [line for line in text.splitlines() if line.startswith("| test |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    expected = scipy.stats.spearmanr(-bounds, -evidences)[0]
    numbers = [f"{-bounds.mean():.3f}", f"{-evidences.mean():.3f}", f"{expected:.2f}"]
    assert cells[:7] == ["test", "gamma", "40", "-", *numbers]
    low, high = (float(word) for word in cells[7].split(" to "))
    assert low < expected < high and "| test | plain |" not in text
    assert (tmp_path / "table_evidence.png").read_bytes().startswith(b"\x89PNG") and "table_evidence.png" in text
