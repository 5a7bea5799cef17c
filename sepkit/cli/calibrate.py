"""`sepkit calibrate`: fit a model's prediction of its own error."""

from pathlib import Path

from sepkit.cli._parser import DEVICE


def main(
    model: str,
    *,
    manifest: str,
    first: int | None = None,
    device: str = DEVICE,
    depth_steps: int | None = None,
    views: int | None = None,
) -> Path:
    """Fit the prediction of a model's own error without references, and keep it beside the model.

    Writes quality.yaml into the model's folder, from where `sepkit separate` and `sepkit evaluate` take the prediction
    of SI-SDR. Use mixtures that the model was not trained on; the predictions are valid for mixtures like them.

    Example:
        sepkit calibrate exp/tasnet --manifest data/mini/dev.jsonl

    Args:
        model: MODEL that `sepkit train` wrote (EXP, EXP/model)
        manifest: manifest of mixtures with sources, dev.jsonl for example
        first: number of mixtures, from the beginning of the manifest (default: all)
        depth_steps: steps of a continuous-depth model; the predictions are valid only at this number (default: the
            model's own)
        views: number of views of a recording that the model uses from now on if --views is not given (default: 2 if a
            view takes less processor time here than 0.01 of the recording's length, else 1)
    """
    import sys

    from sepkit.cli._threads import limit_small_models_to_one_thread
    from sepkit.errors import UserError
    from sepkit.inference.calibration import affordable_views, calibrate
    from sepkit.inference.loading import load_model
    from sepkit.inference.quality.predictor import write_quality
    from sepkit.inference.separator import Separator
    from sepkit.models.published.public import PUBLIC
    from sepkit.models.published.shipped import shipped_models
    from sepkit.models.storage.folders import find_checkpoint

    if not Path(model).exists() and (":" in model or model in {**shipped_models(), **PUBLIC}):
        raise UserError(
            f"{model}: has no folder of yours that the predictor could be saved in; calibrate a model that you "
            "trained, "
            "for example one fine-tuned with `sepkit train --init-from MODEL`"
        )
    folder = find_checkpoint(model)
    separator = load_model(folder, device, predict=False, depth_steps=depth_steps, views=1)
    separator = Separator(separator.runner, views=views or affordable_views(separator.runner))
    limit_small_models_to_one_thread(separator)
    found = calibrate(separator, manifest, first=first)
    for name, reason in found.skipped.items():
        print(f"sepkit calibrate: {name} is left out: {reason}", file=sys.stderr)
    fitted, ridge = found.predictor, found.predictor.model
    print(f"fitted on {fitted.examples} estimates in {fitted.mixtures} mixtures, {len(found.skipped)} skipped")
    rank, correlation = (
        "none" if value is None else f"{value:.2f}" for value in (ridge.rank_correlation, ridge.correlation)
    )
    print(
        f"predicted SI-SDR of mixtures left out, from {len(ridge.features)} features: rank correlation {rank}, "
        f"correlation {correlation}, error {ridge.error_db:.2f} dB, "
        f"{100 * fitted.coverage:.0f} % interval +-{ridge.half_width_db:.2f} dB"
    )
    if (single := fitted.single_speaker) is not None:
        print(
            f"one speaker alone is found in {100 * single.one.found:.0f} % of such recordings and taken for several "
            f"in {100 * single.taken_for_several:.0f} %, several are found in {100 * single.found_several:.0f} % and "
            f"taken for one in {100 * single.one.false_alarms:.0f} %; else no number is given"
        )
    elif not separator.runner.scored:
        print("speakers are not counted: estimates do not tell one speaker from more")
    return write_quality(fitted, folder)
