"""egs/quantization: every stage at a tiny size, and what its configurations say."""

import json
from pathlib import Path

import pytest

from sepkit.studies.quantization.config import GaussiansConfig, UCIConfig, read_config
from tests.studies.quantization.conftest import write_uci_set

RECIPE = Path(__file__).resolve().parents[2] / "egs" / "quantization"
TINY = """
free: {hypotheses: 2, points: 50, temperatures: [1.3], split_points: 60}
gaussians: {methods: [mcl], hypotheses: 2, hidden: [4], seeds: 1, epochs: 2, batch_size: 8,
            clvq_steps: 9, lloyd_inputs: 1}
sines: {kinds: [plain], targets: [raw], seeds: 1, examples: 60, test_examples: 20, steps: 2}
uci: {hypotheses: 2, hidden: 4, epochs: 4, check_every: 2}
"""


def test_stages(tmp_path: Path, run) -> None:
    write_uci_set(tmp_path / "sets", "yacht", splits=1)
    (tmp_path / "tiny.yaml").write_text(TINY)
    options = ["--conf", str(tmp_path / "tiny.yaml"), "--exp", str(tmp_path / "exp"), "--uci", str(tmp_path / "sets")]
    options += ["--sets", "yacht", "--methods", "mcl", "--select", "last held_out"]
    assert "yacht: 40 rows" in run(["bash", str(RECIPE / "run.sh"), *options])
    names = {path.name for path in (tmp_path / "exp").glob("*.json")}
    assert names == {f"{name}.json" for name in ("free", "gaussians", "sines", "table")}
    assert len(json.loads((tmp_path / "exp" / "table.json").read_text())) == 2


@pytest.mark.parametrize("name", ["cpu", "paper"])
def test_configurations(name: str) -> None:
    """Both are readable, and have the papers' settings of UCI; one has the paper's batch on Gaussians."""
    found = read_config(RECIPE / "conf" / f"{name}.yaml")
    assert found.uci == UCIConfig()
    assert found.gaussians == GaussiansConfig(batch_size=512 if name == "cpu" else 65_536)
