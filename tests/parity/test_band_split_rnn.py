"""The band-split masker against numbers of the reference code.

`golden/band_split_rnn.npz` holds outputs of BSRNN of ESPnet (espnet2/enh/layers/bsrnn.py at 22148c51, Apache-2.0) in
float64 for 65 bins in the bands below, 3 channels, 2 layers and 2 speakers. Weights and input are those of `numbers`.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.models.maskers import BandSplitRNNMasker
from sepkit.models.maskers.band_split_rnn import band_widths

GOLDEN = Path(__file__).with_name("golden") / "band_split_rnn.npz"


def numbers(name: str, shape: torch.Size) -> torch.Tensor:
    """Return the value of the reference's parameter of this name; gains of norms are one more."""
    phase = zlib.crc32(name.encode()) % 1000
    values = 0.4 * np.sin(1.7 * np.arange(shape.numel()) + phase)
    is_gain = name.endswith("gamma") or ("norm" in name and name.endswith("weight"))
    is_gain |= name.startswith("mask_decoder") and ".0.weight" in name
    return torch.tensor(values + is_gain).reshape(shape)


def reference_name(name: str, norm: str) -> str:
    """The reference's name of one of our parameters."""
    gain, offset = ("weight", "bias") if norm == "global_layer_norm" else ("gamma", "beta")
    for pattern, theirs in (
        (r"split\.(\d+)\.0\.", r"band_split.norm.\1."),
        (r"split\.(\d+)\.1\.", r"band_split.fc.\1."),
        (r"blocks\.(\d+)\.time_norm\.", r"norm_time.\1."),
        (r"blocks\.(\d+)\.band_norm\.", r"norm_freq.\1."),
        (r"blocks\.(\d+)\.time\.", r"rnn_time.\1."),
        (r"blocks\.(\d+)\.over_bands\.", r"rnn_freq.\1."),
        (r"blocks\.(\d+)\.time_output\.", r"fc_time.\1."),
        (r"blocks\.(\d+)\.band_output\.", r"fc_freq.\1."),
        (r"masks\.", "mask_decoder.mlp_mask."),
        (r"residuals\.", "mask_decoder.mlp_residual."),
    ):
        name, count = re.subn(f"^{pattern}", theirs, name)
        if count:
            break
    if "norm" in name or re.search(r"^mask_decoder.*\.0\.(weight|bias)$", name):
        name = name.replace("weight", gain).replace("bias", offset)
    return name


@pytest.mark.parametrize(
    ("which", "bidirectional", "norm"),
    [("two_way", True, "global_layer_norm"), ("causal", False, "channel_layer_norm")],
)
def test_numbers_are_those_of_the_reference(which, bidirectional, norm):
    masker = BandSplitRNNMasker(
        130, 2, bands="8k", channels=3, num_layers=2, bidirectional=bidirectional, residual=True, norm=norm
    )
    with torch.no_grad():
        for name, parameter in masker.named_parameters():
            theirs = numbers(reference_name(name, norm), parameter.shape)
            parameter.copy_(theirs)
    step = np.arange(6 * 65 * 2)
    x = torch.tensor(np.sin(0.37 * step * step / 50), dtype=torch.float32).reshape(1, 6, 65, 2)
    # (B, F, bins, 2) -> (B, 2 bins, F), real parts first.
    features = x.permute(0, 3, 2, 1).flatten(1, 2)
    with torch.no_grad():
        found = masker(features)[:, :, 0].unflatten(2, (2, 65)).permute(0, 1, 4, 3, 2)
    expected = torch.from_numpy(np.load(GOLDEN)[which])
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_bands_are_those_of_the_reference_numbers():
    assert band_widths("8k", 65) == [2] + [1] * 15 + [2] * 8 + [4] * 8
