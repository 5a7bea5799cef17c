"""SepReformer against numbers of the authors' code, loaded from a file in the layout of theirs.

`golden/sepreformer.npz` holds outputs of models/SepReformer_Base_WSJ0 (dmlguq456/SepReformer at 43cbad8, Apache-2.0) in
float64, for two speakers and stages, and for three speakers and one stage. Weights and input are those of
`tests.published`.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.models.bridges import from_sepreformer
from tests.published import sepreformer_checkpoint, sepreformer_weights, waveform

GOLDEN = Path(__file__).with_name("golden") / "sepreformer.npz"


@pytest.mark.parametrize(("hypotheses", "stages"), [(2, 2), (3, 1)])
def test_numbers_are_those_of_the_reference(hypotheses, stages, tmp_path):
    torch.save(sepreformer_checkpoint(sepreformer_weights(hypotheses, stages)), tmp_path / "epoch.0180.pth")
    config = "config: {model: {module_audio_enc: {stride: 4}}, dataset: {sampling_rate: 8000}}"
    (tmp_path / "configs.yaml").write_text(config)
    model = from_sepreformer(tmp_path / "epoch.0180.pth")
    assert not model.training and model.hypotheses == hypotheses
    golden = np.load(GOLDEN)
    mixture = waveform(116).float()
    with torch.no_grad():
        found = model(mixture)
    expected = torch.from_numpy(golden[f"estimates_{hypotheses}"]).float()
    assert expected.std() > 0.2
    torch.testing.assert_close(found.estimates, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.estimates(mixture), found.estimates)
