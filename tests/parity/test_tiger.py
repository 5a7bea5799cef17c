"""TIGER against numbers of the authors' code, loaded from a file in the layout of theirs.

`golden/tiger.npz` holds every seventh sample of what look2hear/models/tiger.py gives in float64 (JusperLee/TIGER, as in
QJH-0/TIGER at 6b888af, Apache-2.0). Weights are those of `tests.published`. Mirrored ends are zeros here, because the
mixture begins and ends with zeros.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sepkit.models.bridges import from_tiger
from tests.published import tiger_arguments, tiger_weights, waveform

GOLDEN = Path(__file__).with_name("golden") / "tiger.npz"
# Of the names in the authors' state_dict, sorted, one a line.
NAMES = {
    2: "9f0dc54634b1df67001a17caa15abd84f2366835b7f0217ddf7d1d90edeb9d1c",
    3: "8dc23beb3641a0d7ae1020357bf681256895189ee2b371b5473aa5b3cd49578a",
}


@pytest.mark.parametrize(("hypotheses", "scales", "iterations", "stride"), [(2, 3, 2, 160), (3, 4, 1, 320)])
def test_numbers_are_those_of_the_reference(hypotheses, scales, iterations, stride, tmp_path):
    weights = tiger_weights(hypotheses, scales)
    assert hashlib.sha256("\n".join(sorted(weights)).encode()).hexdigest() == NAMES[hypotheses]
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(tiger_arguments(hypotheses, scales, iterations, stride)))
    model = from_tiger(tmp_path)
    assert not model.training and model.sample_rate == 16000 and model.hypotheses == hypotheses
    mixture = 0.2 * waveform(2560).float()
    mixture[:, :330] = mixture[:, -330:] = 0
    with torch.no_grad():
        found = model(mixture).estimates
    expected = torch.from_numpy(np.load(GOLDEN)[f"estimates_{hypotheses}"])
    assert expected.std() > 0.05
    # Within a window of either end fewer frames overlap where windows overlap by more than half; torch.istft divides by
    # what there is, and sepkit has frames beyond.
    inner = slice(0, None) if stride == 320 else slice(92, -92)
    assert (found[..., ::7][..., inner] - expected[..., inner]).abs().max() < 1e-5 * expected.abs().max()
    # Masks sum to one.
    torch.testing.assert_close(found.sum(1), mixture, rtol=0, atol=1e-6)
