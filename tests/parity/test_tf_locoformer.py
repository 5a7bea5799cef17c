"""TF-Locoformer against numbers of the authors' code, loaded from a file in the layout of theirs.

`golden/tf_locoformer.npz` holds estimates, in float64, of tflocoformer_separator.py (merlresearch/tf-locoformer at
b76d38b, Apache-2.0) between torch.stft and torch.istft as ESPnet calls them, of a mixture divided by its deviation.
Weights are those of `tests.published`. Mirrored ends are zeros here, because the mixture begins and ends with zeros.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.models.bridges import from_tf_locoformer
from tests.published import tf_locoformer_weights, tf_locoformer_yaml, waveform

GOLDEN = Path(__file__).with_name("golden") / "tf_locoformer.npz"


@pytest.mark.parametrize("hypotheses", [2, 3])
def test_numbers_are_those_of_the_reference(hypotheses, tmp_path):
    torch.save(tf_locoformer_weights(hypotheses), tmp_path / "valid.loss.ave_5best.pth")
    (tmp_path / "config.yaml").write_text(tf_locoformer_yaml(hypotheses))
    model = from_tf_locoformer(tmp_path / "valid.loss.ave_5best.pth")
    assert not model.training and model.hypotheses == hypotheses and model.input_norm == "mixture"
    mixture = 0.2 * waveform(88).float()
    mixture[:, :9] = mixture[:, -9:] = 0
    with torch.no_grad():
        found = model(mixture).estimates
    expected = torch.from_numpy(np.load(GOLDEN)[f"estimates_{hypotheses}"]).float()
    assert expected.std() > 0.05
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    with torch.no_grad():
        torch.testing.assert_close(model.estimates(mixture), found)


def test_frames_are_those_of_torch_where_windows_overlap_by_more_than_half(tmp_path):
    torch.save(tf_locoformer_weights(), tmp_path / "valid.loss.ave_5best.pth")
    sizes = "hop_length: 8\n  n_fft: "
    (tmp_path / "config.yaml").write_text(tf_locoformer_yaml().replace(f"{sizes}16", f"{sizes}32"))
    model = from_tf_locoformer(tmp_path / "valid.loss.ave_5best.pth")
    assert (model.filterbank.kernel_size, model.filterbank.stride, model.masker.edge_frames) == (32, 8, 1)
    mixture = 0.2 * waveform(160).float()
    mixture[:, :17] = mixture[:, -17:] = 0
    with torch.no_grad():
        found = model(mixture).estimates
        torch.testing.assert_close(model.estimates(mixture), found)
    expected = torch.from_numpy(np.load(GOLDEN)["quarter_2"]).float()
    # Within a window of either end fewer frames overlap; torch.istft divides by what there is.
    inner = slice(32, -32)
    assert expected[..., inner].std() > 0.05
    torch.testing.assert_close(found[..., inner], expected[..., inner], rtol=0, atol=1e-4 * float(expected.abs().max()))
