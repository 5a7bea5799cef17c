"""`sepkit separate`: recordings in, one wav per speaker out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sepkit.cli._parser import DEVICE
from sepkit.inference.options import OutputOptions, SeparatorOptions

if TYPE_CHECKING:
    from sepkit.inference.batch.reports import FilesReport
    from sepkit.inference.separator import Separator

GROUPS = {
    "Input and output": ["inputs", "out", "channel", "format", "subtype", "rttm", "summary", "verify"],
    "Model": ["model", "device", "precision", "depth_steps", "runner", "import_"],
    "Estimates": ["speakers", "views", "levels", "mixture_consistency", "score_threshold", "no_predict"],
    "More speakers than outputs": ["link_speakers", "speaker_encoder", "speaker_features", "enroll", "only"],
    "Long recordings": ["whole_seconds", "chunk_seconds", "overlap_seconds", "processes"],
}


def main(
    inputs: list[str],
    *,
    out: str = "separated",
    model: str | None = None,
    device: str = DEVICE,
    output: OutputOptions,
    options: SeparatorOptions,
    no_predict: bool = False,
    processes: int = 1,
    summary: str | None = None,
) -> Path:
    """Separate audio files; the same command again continues where it stopped.

    Example:
        sepkit separate recording.wav --out separated

    Args:
        inputs: audio files, and folders to search for them
        out: folder for the results: <relative path>_s1.wav, _s2.wav ... at the rate and level of the recording, and
            <relative path>.json with scores and the SI-SDR to expect
        model: MODEL to separate with (default: the one that ships with sepkit)
        output: what is written
        options: how the model separates
        no_predict: leave out the prediction of SI-SDR
        processes: number of processes, each separating recordings on the CPU; torchrun distributes recordings over
            accelerators
        summary: JSON file for counts, failures and the real-time factor; with torchrun FILE.rank0 ..., then FILE
    """
    from sepkit.cli._ranks import device_of_rank, share
    from sepkit.cli._threads import limit_small_models_to_one_thread
    from sepkit.inference.batch.inputs import check_inputs
    from sepkit.inference.batch.reports import check_summary

    # Mistakes in names are reported before a model is loaded.
    check_inputs(inputs, Path(out))
    if summary is not None:
        check_summary(Path(summary))
    from sepkit.inference import separate_files
    from sepkit.inference.loading import load_model
    from sepkit.models.published.hub import pinned
    from sepkit.models.published.shipped import DEFAULT_MODEL

    model = model or DEFAULT_MODEL
    rank, world_size = share()
    separator = load_model(model, device_of_rank(device), options, predict=not no_predict)
    limit_small_models_to_one_thread(separator)
    if (note := _unpredicted(model, separator, predict=not no_predict)) is not None:
        print(f"sepkit separate: {note}", file=sys.stderr)
    shared = {"processes": processes, "rank": rank, "world_size": world_size}
    report = separate_files(inputs, separator, out, output, model_name=pinned(model), tell=_tell, **shared)
    if summary is not None:
        _write_summary(report, Path(summary), rank, world_size)
    for line in report.warnings:
        print(f"sepkit separate: {line}", file=sys.stderr)
    if report.failed:
        print(f"sepkit separate: {report}", file=sys.stderr)
        print(out, flush=True)
        raise SystemExit(1)
    print(report)
    return Path(out)


def _tell(line: str, failed: bool) -> None:
    """Print a line above the bar; at once, so that whatever ends the command takes none away."""
    from tqdm import tqdm

    tqdm.write(f"sepkit separate: {line}" if failed else line, file=sys.stderr if failed else sys.stdout)
    sys.stdout.flush()


def _unpredicted(model: str, separator: Separator, predict: bool) -> str | None:
    """Return a line if the model predicts its SI-SDR, but not for this number of steps."""
    from sepkit.inference.quality.predictor import QUALITY
    from sepkit.models import model_folder

    folder = model_folder(model)
    if not predict or separator.quality is not None or folder is None or not (folder / QUALITY).is_file():
        return None
    return (
        f"no SI-SDR is predicted: the predictor was fitted for another number of steps than {separator.depth_steps};"
        f" sepkit calibrate --depth-steps {separator.depth_steps} fits one"
    )


def _write_summary(report: FilesReport, path: Path, rank: int, world_size: int) -> None:
    from sepkit.files import write_json
    from sepkit.inference.batch.reports import check_summary, merge_summaries

    # What was written since may be called so.
    check_summary(path)
    if world_size == 1:
        write_json(path, report.to_plain())
        return
    write_json(path.with_name(f"{path.name}.rank{rank}"), report.to_plain() | {"world_size": world_size})
    merge_summaries(path, world_size)
