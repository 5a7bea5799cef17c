"""`sepkit cluster`: who spoke when, without enrollment."""

from pathlib import Path
from typing import Any, Literal


def main(
    inputs: list[str],
    *,
    out: str,
    speaker_encoder: str | None = None,
    speaker_features: Literal["waveform", "fbank", "mel"] | None = None,
    speakers: Literal["auto"] | int = "auto",
    reference: str | None = None,
    json: bool = False,
) -> Path | None:
    """Find who spoke when (diarization) in recordings, in folders of them, or in what `sepkit separate` wrote.

    Segments of speech are embedded by a speaker encoder, counted and clustered. Speakers are named in the order in
    which they appear.

    Example:
        sepkit cluster separated --out clusters

    Args:
        inputs: audio files, and folders to search for them
        out: folder of segments.csv, summary.json and <relative path>.rttm
        speaker_encoder: speaker encoder: a folder that `sepkit train --config speaker_encoder` wrote, FILE.onnx of any
            toolkit, or one that ships with sepkit: campplus_8k or meetings_8k; as baselines: mean_mfcc or mean_log_mel
            (default: campplus_8k)
        speaker_features: input of FILE.onnx: waveform, fbank (WeSpeaker, 3D-Speaker) or mel (Resemblyzer) (default: the
            one in its metadata)
        speakers: number of speakers, or auto: it is estimated
        reference: CSV file with the true speaker of each recording (columns path and speaker), to score against; to
            score who spoke when, see `sepkit evaluate --meeting`
        json: print the summary as JSON instead of sentences
    """
    import sys

    from sepkit.files import write_json
    from sepkit.inference.batch.inputs import check_inputs

    known = None
    if reference is not None:
        from sepkit.evaluation.clusters import read_reference

        known = read_reference(reference)
    # Mistakes in names are reported before a model is loaded.
    check_inputs(inputs, Path(out))
    from sepkit.inference.batch.cluster import cluster_recordings

    summary = cluster_recordings(inputs, out, encoder=speaker_encoder, features=speaker_features, speakers=speakers)
    if known is not None:
        from sepkit.evaluation.clusters import score_clusters

        summary["scores"] = {"reference": reference, **score_clusters(Path(out) / "segments.csv", known)}
        write_json(Path(out) / "summary.json", summary)
    for item in summary["skipped"]:
        print(f"sepkit cluster: {item['reason']}", file=sys.stderr)
    if json:
        from json import dumps

        print(dumps(summary, indent=1), flush=True)
    else:
        print("\n".join([*_sentences(summary), out]), flush=True)
    if summary["n_skipped"]:
        raise SystemExit(1)
    return None


def _sentences(summary: dict[str, Any]) -> list[str]:
    from sepkit.inference.separated import counted

    count, counting, recordings = summary["n_speakers"], summary["counting"], summary["n_recordings"]
    what = counted(count, "speaker"), counted(summary["n_segments"], "segment"), counted(recordings, "recording")
    text = "{} in {} of {}".format(*what)
    if counting is not None:
        text += f"; uncertain, perhaps {counting['runner_up']}" if counting["uncertain"] else ""
    if summary["n_short"]:
        text += f"; {counted(summary['n_short'], 'segment')} too short to tell (see summary.json)"
    lines = [text]
    if scores := summary.get("scores"):
        lines += [f"{path}: in {scores['reference']}, but in no cluster" for path in scores["unknown_paths"]]
        text = ", ".join(f"{name.upper()} {100 * scores[name]:.1f} %" for name in ("nmi", "acc", "ari", "purity"))
        counts = ", ".join(f"{scores[f'n_{name}']} {name}" for name in ("segments", "clusters", "speakers"))
        lines.append(f"{text}; {counts}")
    return lines
