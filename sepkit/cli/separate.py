"""`sepkit separate`: recordings in, one wav a speaker out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
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
    import_: list[str] | None = None,
) -> Path:
    """Separate audio files; the same command again goes on where it stopped.

    Writes OUT/<relative path>_s1.wav, _s2.wav ... at the input's rate and level, and OUT/<relative path>.json, which
    tells scores and which hypotheses were kept.

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
        import_: Python files that register your own maskers; executed

    Returns:
        The folder of the estimates. Exits with 1 if some recordings could not be separated.

    Raises:
        UserError: a model, input, device or output folder that is not there.
    """
    import sys

    from sepkit.cli.train import import_file
    from sepkit.inference import load_model, separate_files

    for file in import_ or []:
        import_file(file)
    wanted = _speakers(speakers)
    separator = load_model(model, device, levels)
    report = separate_files(inputs, separator, out, channel=channel, speakers=wanted, subtype=subtype, model_name=model)
    if report.failed:
        for reason in report.failed.values():
            print(f"sepkit separate: {reason}", file=sys.stderr)
        print(f"sepkit separate: {report}", file=sys.stderr)
        print(out, flush=True)
        raise SystemExit(1)
    print(report)
    return Path(out)


def _speakers(text: str | None) -> Speakers:
    from sepkit.errors import UserError

    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise UserError(f"--speakers {text}: expected auto or a number") from None
