"""SR-CorrNet against numbers of the authors' code, loaded from files in the layout of theirs.

`golden/sr_corrnet.npz` holds what model.py gives, in float64, between their STFT and iSTFT (dmlguq456/SR_CorrNet_SS at
7340365, MIT) for a mixture divided by its deviation, times that deviation. Weights are those of `tests.published`.
"""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from sepkit.models.bridges import from_sr_corrnet
from tests.published import sr_corrnet_description, sr_corrnet_weights, waveform

GOLDEN = Path(__file__).with_name("golden") / "sr_corrnet.npz"
MIXTURE = 0.2 * waveform(90).float()
BIAS = "spk_split.pres_linear.bias"


def loaded(folder: Path, hypotheses: int, *sizes, window: int = 16, bias: float = 0.0):
    """Return a model that pads as the authors' code does: not at all."""
    weights = sr_corrnet_weights(hypotheses, *sizes)
    if BIAS in weights:
        weights[BIAS] += bias
    torch.save(weights, folder / "model.pt")
    (folder / "config.yaml").write_text(yaml.safe_dump(sr_corrnet_description(hypotheses, *sizes, window=window)))
    model = from_sr_corrnet(folder)
    assert not model.training and model.hypotheses == hypotheses and model.input_norm == "mixture"
    model.pad = "asteroid"
    return model


def assert_golden(found, name: str) -> None:
    expected = torch.from_numpy(np.load(GOLDEN)[name]).float()
    assert expected.std() > 0.05
    # Theirs has no samples after the last whole window, where ours has zeros.
    assert not found[..., expected.shape[-1] :].any()
    tolerance = 2e-5 * float(expected.abs().max())
    torch.testing.assert_close(found[..., : expected.shape[-1]], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("hypotheses", [2, 3])
def test_numbers_are_those_of_the_reference(hypotheses, tmp_path):
    model = loaded(tmp_path, hypotheses)
    with torch.no_grad():
        separation = model(MIXTURE)
        torch.testing.assert_close(model.estimates(MIXTURE), separation.estimates)
    assert_golden(separation.estimates, f"fixed_{hypotheses}")


def test_the_transform_with_a_quarter_of_a_window(tmp_path):
    with torch.no_grad():
        assert_golden(loaded(tmp_path, 2, False, 3, 5, window=32)(MIXTURE).estimates, "quarter_2")


def test_speakers_are_counted_as_there(tmp_path):
    """Their attractors 2 and 3 of 1 to 4 are positive: two speakers, the first two."""
    model = loaded(tmp_path, 3, True, bias=-0.34)
    with torch.no_grad():
        separation = model(MIXTURE)
        told = model(MIXTURE, speakers=torch.tensor([3]))
        # A number for each mixture of a batch.
        both = model(MIXTURE.expand(2, -1), speakers=torch.tensor([3, 2])).estimates
    logits = torch.from_numpy(np.load(GOLDEN)["logits"]).float()
    assert separation.scores is not None and (separation.scores > 0).tolist() == [[True, True, False]]
    torch.testing.assert_close(separation.scores, logits[:, 1:].sort(descending=True).values[:, :3], rtol=0, atol=1e-5)
    assert_golden(separation.estimates[:, :2], "counted")
    assert not separation.estimates[:, 2].any()
    assert_golden(told.estimates, "told_3")
    torch.testing.assert_close(both, torch.cat([told.estimates, separation.estimates]), rtol=1e-4, atol=1e-5)


def test_whole_recordings_are_those_of_a_padded_one(tmp_path):
    """As it comes, the model pads, so that no sample is lost."""
    model = loaded(tmp_path, 2)
    left, right = model.filterbank.padding_for(MIXTURE.shape[-1])
    with torch.no_grad():
        padded = model(torch.nn.functional.pad(MIXTURE, (left, right))).estimates[..., left:-right]
        model.pad = "full"
        found = model(MIXTURE).estimates
    torch.testing.assert_close(found, padded, rtol=1e-4, atol=1e-5)
    assert found[..., -1].abs().min() > 1e-3


@pytest.mark.parametrize(
    ("counts", "digest"),
    [
        (False, "94c83e105ab60373ef7e858499a50cf93222ca426a8e2eb3d329cbd20f444ad6"),
        (True, "c2e962a4416055acee6576d476a48a7e14b71fe0eab238976d8c47b460227eed"),
    ],
)
def test_names_are_those_of_the_reference(counts, digest):
    """Sorted, one a line, of the authors' state_dict."""
    names = "\n".join(sorted(sr_corrnet_weights(3 if counts else 2, counts)))
    assert hashlib.sha256(names.encode()).hexdigest() == digest
