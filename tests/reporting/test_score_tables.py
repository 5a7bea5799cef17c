"""The warnings of a report, its panels of training, and groups of numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sepkit.evaluation.results import by_group
from sepkit.evaluation.run_folder import EvaluationFolder, Run, TrainingLog
from sepkit.reporting.figures import training_panels
from sepkit.reporting.score_tables import few_mixtures


def test_few_mixtures_are_warned_of(tmp_path: Path) -> None:
    few, many = (EvaluationFolder(Path("x"), "test", {"metrics": {}, "n_utterances": n}, []) for n in (19, 20))
    assert "test (19)" in few_mixtures(Run(tmp_path, "run", [few]))
    assert few_mixtures(Run(tmp_path, "run", [many])) == ""


def test_what_never_changes_has_no_panel() -> None:
    records = [
        {
            "kind": "epoch", "epoch": e, "step": e, "train_loss": -float(e), "train_separation": -float(e),
            "train_entropy_nats": 0.0, "train_hard_cost": -float(e), "train_usage_1": 0.5 + 0.01 * e,
        }
        for e in range(1, 4)
    ]  # fmt: skip
    panels = training_panels([TrainingLog(records)])
    drawn = {name for names in panels.values() for name in names}
    assert {"train_loss", "train_usage_1"} <= drawn
    assert not {"train_entropy_nats", "train_separation", "train_hard_cost"} & drawn


@pytest.mark.parametrize("factor", [1.0, 0.01, 300.0])
def test_groups_of_numbers_have_round_ends(factor: float) -> None:
    values = factor * np.random.default_rng(0).uniform(0.00512, 0.594, 400)
    groups = by_group({"overlap_ratio": values.tolist()}, {"si_sdr_db": values}, None)["overlap_ratio"]
    assert len(groups) == 4 and sum(group["si_sdr_db"]["n"] for group in groups.values()) == 400
    ends = [float(end) for label in groups for end in label.split(" to ")]
    # Two digits are enough for all, and each group begins where the one before ends.
    assert all(end == pytest.approx(float(f"{end:.2g}"), rel=1e-6) for end in ends)
    assert ends[1:-1:2] == ends[2::2] and ends[0] <= values.min() and ends[-1] >= values.max()
