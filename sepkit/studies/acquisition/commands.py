"""What `sepkit calibrate` does with a model of audiograms."""

from __future__ import annotations

from pathlib import Path


def calibrate(model: str, *, manifest: str, first: int | None = None) -> Path:
    """Fit the prediction of a model's own error, by which `sepkit audiogram next` says when to stop.

    Writes stopping.yaml into the model's folder. Research software, not a medical device.

    Args:
        model: MODEL that `sepkit train` wrote (EXP, EXP/model)
        manifest: audiograms that the model was not trained on, dev.csv for example
        first: how many audiograms, from the beginning of the manifest; default: all

    Returns:
        The path of the file.

    Raises:
        UserError: no such model or manifest, data of other dimensions, or too few of them.
    """
    from sepkit.studies.acquisition.audiogram import NOT_A_MEDICAL_DEVICE
    from sepkit.studies.acquisition.calibration import calibrate

    rule, path = calibrate(model, manifest, first)
    correlation = "none" if rule.correlation is None else f"{rule.correlation:.2f}"
    print(
        f"fitted on {rule.sessions} sessions, errors against the {rule.reference} audiogram: expected errors are off "
        f"by {rule.error_db:.2f} dB (root mean square), correlation {correlation}. {NOT_A_MEDICAL_DEVICE}"
    )
    return path
