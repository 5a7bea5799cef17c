"""Scores as aligned text."""

from typing import Any

from sepkit.reporting.text import evaluation_lines, score_lines


def score(mean: float, **more: Any) -> dict[str, Any]:
    return {"mean": mean, "ci95": [mean - 0.5, mean + 0.25], "n": 300, **more}


MEANS = {"si_sdr_db": 5.0749, "si_sdri_db": 5.06, "mcl_si_sdr_db": 5.2, "stoi": 0.77}
MEANS |= {"blr_nats_per_sample": -0.4, "rate_nats_per_dimension": 2.0}
SCORES: dict[str, Any] = {name: score(mean) for name, mean in MEANS.items()}
SUMMARY = {"metrics": SCORES | {"pesq": {"mean": None, "ci95": None, "n": 0}}}


def test_what_is_usual_or_was_asked_for() -> None:
    lines = score_lines(SUMMARY)
    assert [line.split("  ")[0] for line in lines[1:]] == ["SI-SDR [dB]", "SI-SDR improvement [dB]", "STOI"]
    assert "5.07" in lines[1] and "4.57 to 5.32" in lines[1] and lines[1].split()[-2:] == ["300", "-"]
    lines = score_lines(SUMMARY, ["blr_nats_per_sample", "stoi"])
    assert [line.split("  ")[0] for line in lines[1:]] == ["STOI", "log evidence [nats per sample]"]
    assert score_lines({"metrics": {}}) == ["no mixture has a score"]


def test_manifests_stand_side_by_side() -> None:
    parts = [
        {"manifest": "seen", "metrics": {"si_sdri_db": {"mean": 6.0, "drop_db": None}}},
        {"manifest": "unseen", "metrics": {"si_sdri_db": {"mean": 4.0, "drop_db": 2.0}, "stoi": {"mean": None}}},
    ]
    lines = score_lines(SUMMARY | {"by_manifest": parts})
    assert "seen" in lines[0] and lines[0].endswith("unseen")
    (improvement,) = [line for line in lines if line.startswith("SI-SDR improvement")]
    assert improvement.endswith("6.00  4.00 (drop 2.00)")


def test_differences_from_another_run_have_names_and_digits_of_their_scores() -> None:
    score = {"mean": 0.0312, "ci95": [0.0278, 0.0351], "n": 9}
    metrics = {name: dict(score) for name in ("stoi", "si_sdr_db", "mcl_si_sdr_db")}
    told = {"n_utterances": 0, "interval_unit": "speaker", "comparison": {"other": "exp/a", "metrics": metrics}}
    lines = list(evaluation_lines(SUMMARY | told))
    assert "STOI over exp/a: +0.031 (+0.028 to +0.035)" in lines
    metrics["stoi"]["ci95"] = None
    assert "STOI over exp/a: +0.031" in list(evaluation_lines(SUMMARY | told))
    assert "SI-SDR [dB] over exp/a: +0.03 (+0.03 to +0.04)" in lines
    assert not any("mcl" in line.lower() for line in lines)
