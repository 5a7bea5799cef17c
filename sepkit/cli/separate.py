"""`sepkit separate`: recordings in, one wav a speaker out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sepkit.inference import FilesReport
    from sepkit.inference.separator import Speakers


def main(
    inputs: list[str],
    *,
    model: str,
    out: str,
    device: str = "auto",
    channel: int | None = None,
    speakers: str | None = None,
    levels: Literal["mixture", "model"] = "mixture",
    subtype: Literal["FLOAT", "PCM_16"] = "FLOAT",
    spread: bool = False,
    samples: int = 8,
    no_predict: bool = False,
    hierarchy: bool = False,
    import_: list[str] | None = None,
) -> Path:
    """Separate audio files; the same command again goes on where it stopped.

    Writes OUT/<relative path>_s1.wav, _s2.wav ... at the input's rate and level, and OUT/<relative path>.json, which
    tells scores, which hypotheses were kept, and the SI-SDR to expect, where `sepkit calibrate` was run before. With
    --hierarchy: what the models kept along a cooling make of each file, OUT/<relative path>_hierarchy.json, .png, and a
    folder of wavs.

    Args:
        inputs: audio files, or folders that are searched for them
        model: folder or file that `sepkit train` wrote (EXP, EXP/model), or asteroid:FILE
        out: folder of the estimates
        device: cpu, cuda, cuda:1 ..., or auto (an accelerator where there is one)
        channel: which channel to separate, from 0; default: the mean of all
        speakers: how many there are: auto (what the model's scores say, perhaps none) or a number (those with the best
            scores); default: an estimate for every hypothesis
        levels: mixture scales each estimate to the level it has in the mixture; model leaves it as it comes out
        subtype: sample format of the wavs; PCM_16 falls back to FLOAT where an estimate would clip
        spread: also write OUT/<relative path>_s1_spread.npy ..., the standard deviation of every sample of an estimate
            over samples of a variational model's latents
        samples: how many samples of the latents for --spread
        no_predict: leave out the prediction of SI-SDR, which takes as long as a few separations
        hierarchy: replay the models in EXP/models (trainer.keep_every_epochs) from high temperature to low instead: one
            wav for each group of hypotheses that are alike, and the tree of their splits
        import_: Python files that register your own maskers; executed

    Returns:
        The folder of the estimates. Exits with 1 if some recordings could not be separated.

    Raises:
        UserError: a model, input, device or output folder that is not there.
    """
    import sys

    from sepkit.cli.train import import_file
    from sepkit.errors import UserError
    from sepkit.inference import load_model, separate_files

    for file in import_ or []:
        import_file(file)
    wanted = _speakers(speakers)
    if hierarchy:
        if spread:
            raise UserError("--spread: does not go with --hierarchy; give one of them")
        report = _replay(inputs, model, out, speakers, device=device, channel=channel, levels=levels, subtype=subtype)
    else:
        separator = load_model(model, device, levels, predict=not no_predict)
        report = separate_files(
            inputs,
            separator,
            out,
            channel=channel,
            speakers=wanted,
            subtype=subtype,
            spread=spread,
            samples=samples,
            model_name=model,
        )
    if report.failed:
        for reason in report.failed.values():
            print(f"sepkit separate: {reason}", file=sys.stderr)
        print(f"sepkit separate: {report}", file=sys.stderr)
        print(out, flush=True)
        raise SystemExit(1)
    print(report)
    return Path(out)


def _replay(inputs: list[str], model: str, out: str, speakers: str | None, **options: Any) -> FilesReport:
    from sepkit.errors import UserError
    from sepkit.evaluation.matching_figures import dendrogram
    from sepkit.inference.hierarchy import Hierarchy, separate_hierarchy

    if speakers is not None:
        raise UserError("--speakers: does not go with --hierarchy, which writes groups of hypotheses; give one of them")

    def draw(found: Hierarchy, path: Path) -> None:
        levels = found.levels
        names = [f"s{k + 1}" for k in range(len(levels[0].groups))]
        figure = dendrogram([level.temperature for level in levels], [level.groups for level in levels], names)
        figure.savefig(path, format="png", dpi=160)

    return separate_hierarchy(inputs, model, out, draw=draw, **options)


def _speakers(text: str | None) -> Speakers:
    from sepkit.errors import UserError

    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise UserError(f"--speakers {text}: expected auto or a number") from None
