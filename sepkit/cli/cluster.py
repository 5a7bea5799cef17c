"""`sepkit cluster`: who speaks when, without enrollment."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def main(
    inputs: list[str],
    *,
    out: str,
    model: str | None = None,
    speakers: Literal["auto"] | int = "auto",
    adapt: bool = False,
    adapt_epochs: int | None = None,
    rule: Literal["embedding", "features", "gate", "posterior"] | None = None,
    seed: int = 0,
    json: bool = False,
) -> Path | None:
    """Find who speaks when in recordings, in folders of them, or in what `sepkit separate` wrote.

    Stretches of speech are embedded by an encoder of voices, counted and clustered. Speakers are named in the order
    in which they appear.

    Args:
        inputs: audio files, and folders that are searched for them
        out: folder of segments.csv, summary.json and <relative path>.rttm
        model: folder that `sepkit train --config speaker_encoder` wrote, or the name of an encoder that ships; to
            compare with: mean_mfcc or mean_log_mel; default: the encoder that ships with sepkit
        speakers: their number, or auto: it is found
        adapt: train the encoder on these recordings first (MiCE), from where it is; a killed training continues
        adapt_epochs: length of that training; default: 40, or fewer in long recordings, about 2,000 steps
        rule: what clusters come of: embeddings, features of the trunk, MiCE's gate or MiCE's posterior; default: the
            one that the encoder names
        seed: of k-means and of the training
        json: print the summary as JSON instead of sentences

    Returns:
        The folder. Exits with 1 if some recordings could not be used.

    Raises:
        UserError: an input, encoder or number of speakers that cannot be used.
    """
    import sys

    from sepkit.inference.inputs import find_recordings

    # All mistakes in the arguments are reported before torch is imported.
    find_recordings(inputs, Path(out))
    from sepkit.studies.clustering.cluster import ClusterOptions, cluster_recordings

    summary = cluster_recordings(inputs, out, ClusterOptions(model, speakers, adapt, adapt_epochs, rule, seed))
    for item in summary["skipped"]:
        print(f"sepkit cluster: {item['reason']}", file=sys.stderr)
    if json:
        from json import dumps

        print(dumps(summary, indent=1), flush=True)
    else:
        print(_sentence(summary))
        print(out, flush=True)
    if summary["n_skipped"]:
        raise SystemExit(1)
    return None


def _sentence(summary: dict) -> str:
    count, counting, recordings = summary["n_speakers"], summary["counting"], summary["n_recordings"]
    text = f"{count} speaker{'s' * (count != 1)} in {summary['n_stretches']} stretches of {recordings} recordings"
    if counting is not None:
        text += f"; next best: {counting['runner_up']}"
    if summary["n_short"]:
        text += f"; {summary['n_short']} stretches are too short to tell (see summary.json)"
    return text
