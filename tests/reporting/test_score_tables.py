"""The warnings of a report, its panels of training, and groups of numbers."""

from pathlib import Path

import numpy as np
import pytest

from sepkit.data.manifest import MixtureEntry, SourceEntry
from sepkit.evaluation.results import by_group, describe_mixture
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
    drawn = {name for names in training_panels([TrainingLog(records)]).values() for name in names}
    assert {"train_loss", "train_usage_1"} <= drawn
    assert not {"train_entropy_nats", "train_separation", "train_hard_cost"} & drawn


def test_a_mixture_is_described_by_what_its_sources_are() -> None:
    """8000 Hz, 200 frames of 256: the first source speaks in 0 to 125, the second, 6 dB weaker, in 75 to 200."""
    tone = np.sin(np.arange(51200)).astype(np.float32)
    frames = np.arange(51200) // 256
    sources = np.stack([np.where(frames < 125, tone, 0), np.where(frames >= 75, tone, 0)])
    sources[1] *= 10**-0.3
    entry = MixtureEntry("a", 8000, 51200, [SourceEntry("1.wav", sex="M"), SourceEntry("2.wav", sex="F")])
    found = describe_mixture(entry, sources, sources.sum(0))
    assert found["overlap_ratio"] == 0.25 and found["sex_pair"] == "F-M" and found["duration_seconds"] == 6.4
    assert found["level_difference_db"] == pytest.approx(6.0, abs=0.01)
    assert describe_mixture(entry, sources[:, :100], sources.sum(0)[:100])["overlap_ratio"] is None


def test_groups_stand_in_the_order_of_words_and_of_numbers() -> None:
    pairs, seconds = ["M-M", "F-F", None, "F-M"] * 5, [5.0, 1.0, 4.0, 2.0] * 5
    scores = {"si_sdr_db": np.arange(20.0)}
    properties = {"sex_pair": pairs, "duration_seconds": seconds, "one": ["x"] * 20, "same": [1.0] * 20}
    found = by_group(properties | {"most_same": [1.0] * 16 + [0.5] * 4}, scores, None)
    assert list(found) == ["sex_pair", "duration_seconds"] and list(found["sex_pair"]) == ["F-F", "F-M", "M-M"]
    assert [group["si_sdr_db"]["mean"] for group in found["sex_pair"].values()] == [9.0, 11.0, 8.0]
    assert list(found["duration_seconds"]) == ["1 to 3", "3 to 5"]
    assert [group["si_sdr_db"]["mean"] for group in found["duration_seconds"].values()] == [10.0, 9.0]


@pytest.mark.parametrize("factor", [1.0, 0.01, 300.0])
def test_groups_of_numbers_have_round_ends(factor: float) -> None:
    values = factor * np.random.default_rng(0).uniform(0.00512, 0.594, 400)
    groups = by_group({"overlap_ratio": values.tolist()}, {"si_sdr_db": values}, None)["overlap_ratio"]
    assert len(groups) == 4 and sum(group["si_sdr_db"]["n"] for group in groups.values()) == 400
    ends = [float(end) for label in groups for end in label.split(" to ")]
    # Two digits are enough for all, and each group begins where the one before ends.
    assert all(end == pytest.approx(float(f"{end:.2g}"), rel=1e-6) for end in ends)
    assert ends[1:-1:2] == ends[2::2] and ends[0] <= values.min() and ends[-1] >= values.max()
