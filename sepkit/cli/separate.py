"""`sepkit separate`: recordings in, one wav a speaker out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from io import BufferedIOBase

    from sepkit.inference import FilesReport
    from sepkit.inference.pipe import SampleFormat
    from sepkit.inference.precision import Precision
    from sepkit.inference.separator import Levels, Speakers


def main(
    inputs: list[str] | None = None,
    *,
    model: str | None = None,
    out: str | None = None,
    device: str = "auto",
    channel: int | None = None,
    speakers: str | None = None,
    levels: Literal["mixture", "model"] = "mixture",
    consistency: Literal["mixture"] | None = None,
    format: Literal["wav", "flac"] = "wav",
    subtype: Literal["FLOAT", "PCM_16"] | None = None,
    rttm: bool = False,
    chunk_seconds: float = 10.0,
    overlap_seconds: float = 5.0,
    whole_seconds: float = 30.0,
    stitcher: Literal["profile", "overlap", "none"] = "profile",
    precision: Literal["float32", "bfloat16"] = "float32",
    processes: int = 1,
    summary: str | None = None,
    spread: bool = False,
    samples: int = 8,
    no_predict: bool = False,
    hierarchy: bool = False,
    stream: bool = False,
    sample_rate: int | None = None,
    sample_format: Literal["s16le", "f32le"] = "s16le",
    import_: list[str] | None = None,
) -> Path | None:
    """Separate audio files; the same command again goes on where it stopped.

    Writes OUT/<relative path>_s1.wav, _s2.wav ... at the input's rate and level, and OUT/<relative path>.json, which
    tells scores, which hypotheses were kept, and the SI-SDR to expect, where `sepkit calibrate` was run before. With
    --hierarchy: what the models kept along a cooling make of each file, OUT/<relative path>_hierarchy.json, .png, and a
    folder of wavs. With --stream: raw mono PCM from standard input as it comes, the estimates to standard output at
    once, their channels interleaved; for causal models.

    Args:
        inputs: audio files, or folders that are searched for them
        model: MODEL to separate with; default: the one that ships with sepkit
        out: folder of the estimates
        device: cpu, cuda, cuda:1 ..., or auto (an accelerator where there is one)
        channel: which channel to separate, from 0; default: the mean of all
        speakers: how many there are: auto (what the model's scores say, perhaps none) or a number (those with the best
            scores); default: an estimate for every hypothesis
        levels: mixture scales each estimate to the level it has in the mixture (with --stream: has had so far); model
            leaves it as it comes out
        consistency: mixture makes the estimates add up to the recording, sample by sample
        format: of the estimates: wav or flac
        subtype: sample format; where an estimate would clip, PCM_16 falls back to a wav of FLOAT; default: FLOAT for
            wav, PCM_16 for flac
        rttm: also write OUT/<relative path>.rttm: who speaks when
        chunk_seconds: long recordings are separated in chunks of so many seconds, in bounded memory
        overlap_seconds: what neighbouring chunks share, at most half of them
        whole_seconds: recordings up to so long are separated as a whole (inf: all)
        stitcher: tells which estimate of a chunk is which speaker: profile by overlaps and voices, overlap by the
            correlation of overlaps alone, none leaves it to the model
        precision: bfloat16 is faster with dual_path_rnn of LSTMs on processors that have it, and a little less exact
        processes: that separate recordings side by side on the CPU; torchrun shares them among accelerators and nodes
        summary: JSON file to write counts, failures and real-time factor to; under torchrun FILE.rank0 ... and, when
            all are there, FILE
        spread: also write OUT/<relative path>_s1_spread.npy ..., the standard deviation of every sample of an estimate
            over samples of a variational model's latents
        samples: how many samples of the latents for --spread
        no_predict: leave out the prediction of SI-SDR, which takes as long as a few separations
        hierarchy: replay the models in EXP/models (trainer.keep_every_epochs) from high temperature to low instead: one
            wav for each group of hypotheses that are alike, and the tree of their splits
        stream: from standard input to standard output, in place of files; the latency is told on standard error
        sample_rate: Hz, of the PCM of --stream; default: that of the model, which has the least latency
        sample_format: of the PCM of --stream: s16le or f32le (full scale 1)


    Returns:
        The folder of the estimates; None with --stream. Exits with 1 if some recordings could not be separated.

    Raises:
        UserError: a model, input, device or output folder that is not there.
    """
    import sys

    from sepkit.cli._ranks import device_of_rank, share
    from sepkit.errors import UserError
    from sepkit.inference import load_model, separate_files
    from sepkit.models.shipped import default_model

    model = default_model() if model is None else model
    if stream:
        others = {"INPUT": inputs, "--out": out, "--channel": channel, "--speakers": speakers, "--spread": spread}
        others |= {"--hierarchy": hierarchy, "--consistency": consistency, "--subtype": subtype, "--rttm": rttm}
        others |= {"--processes": processes > 1, "--format": format != "wav", "--summary": summary}
        return _stream(model, device, levels, precision, sample_rate, sample_format, others)
    if not inputs or out is None:
        raise UserError("expected recordings and --out FOLDER (or --stream, to separate what comes in by a pipe)")
    if sample_rate is not None:
        raise UserError("--sample-rate: goes with --stream only; files say theirs")
    wanted = _speakers(speakers)
    rank, world_size = share()
    if hierarchy:
        if spread:
            raise UserError("--spread: does not go with --hierarchy; give one of them")
        if precision != "float32":
            raise UserError("--precision: does not go with --hierarchy; leave it out")
        report = _replay(
            inputs, model, out, speakers, device=device, channel=channel, levels=levels, subtype=subtype or "FLOAT"
        )
    else:
        if processes > 1 and import_:
            raise UserError("--processes: does not go with --import, whose maskers other processes do not know")
        separator = load_model(
            model,
            device_of_rank(device),
            levels,
            predict=not no_predict,
            consistency=consistency,
            chunk_seconds=chunk_seconds,
            overlap_seconds=overlap_seconds,
            whole_seconds=whole_seconds,
            stitcher=stitcher,
            precision=precision,
        )
        report = separate_files(
            inputs,
            separator,
            out,
            channel=channel,
            speakers=wanted,
            subtype=subtype,
            file_format=format,
            rttm=rttm,
            processes=processes,
            rank=rank,
            world_size=world_size,
            spread=spread,
            samples=samples,
            model_name=model,
        )
    if summary is not None and not hierarchy:
        _write_summary(report, Path(summary), rank, world_size)
    if report.failed:
        for reason in report.failed.values():
            print(f"sepkit separate: {reason}", file=sys.stderr)
        print(f"sepkit separate: {report}", file=sys.stderr)
        print(out, flush=True)
        raise SystemExit(1)
    print(report)
    return Path(out)


def _write_summary(report: FilesReport, path: Path, rank: int, world_size: int) -> None:
    from sepkit.inference.reports import merge_summaries, write_summary

    if world_size == 1:
        write_summary(path, report.to_plain())
        return
    write_summary(path.with_name(f"{path.name}.rank{rank}"), report.to_plain() | {"world_size": world_size})
    merge_summaries(path, world_size)


def _stream(
    model: str,
    device: str,
    levels: Levels,
    precision: Precision,
    sample_rate: int | None,
    sample_format: SampleFormat,
    others: dict[str, Any],
) -> None:
    import sys

    from sepkit.errors import UserError
    from sepkit.inference import load_model
    from sepkit.inference.pipe import separate_pipe

    for option, value in others.items():
        if value is not None and value is not False and value != []:
            raise UserError(f"{option}: does not go with --stream, which reads and writes pipes; leave it out")
    if sys.stdin.isatty():
        raise UserError("--stream: standard input is a terminal, expected raw PCM; pipe a recording into it")
    separator = load_model(model, device, predict=False, precision=precision)
    with separator.streaming(sample_rate, levels) as stream:
        print(
            f"sepkit separate: {stream.hypotheses} channels of {sample_format} at {stream.sample_rate} Hz, latency "
            f"{1000 * stream.latency_seconds:.2f} ms",
            file=sys.stderr,
            flush=True,
        )
        try:
            # Its type hides that it is buffered.
            source = cast("BufferedIOBase", sys.stdin.buffer)
            report = separate_pipe(stream, source, sys.stdout.buffer, sample_format)
        except BrokenPipeError:
            # Whoever listens has heard enough. Standard output must not be flushed again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
    print(f"sepkit separate: {report}", file=sys.stderr)


def _replay(inputs: list[str], model: str, out: str, speakers: str | None, **options: Any) -> FilesReport:
    from sepkit.errors import UserError
    from sepkit.inference.hierarchy import Hierarchy, separate_hierarchy
    from sepkit.reporting.matching_figures import dendrogram

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
