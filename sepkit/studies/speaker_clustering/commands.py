"""`sepkit voices ...`: measure encoders of voices on collections with known speakers."""

from __future__ import annotations

from pathlib import Path


def score(model: str, *, collection: str, out: str, seeds: int = 3) -> Path:
    """Write how well each rule of an encoder finds the speakers of a collection, their number known.

    Args:
        model: folder that `sepkit train --config speaker_encoder` wrote, an encoder that ships, mean_mfcc or
            mean_log_mel
        collection: folder that `sepkit prepare voices` wrote, or its voices.csv
        out: the file, FILE.json; tables call the method by the name of its folder
        seeds: of k-means, whose mean counts
    """
    from sepkit.files import write_json
    from sepkit.studies.speaker_clustering.measures import read_collection, score_encoder

    return write_json(out, score_encoder(model, read_collection(collection), seeds))


def table(scores: list[str], *, out: str) -> Path:
    """Write a table of scores, mean and deviation over the runs of each method.

    Args:
        scores: files that `sepkit voices score` wrote, METHOD/RUN.json
        out: the file, FILE.md
    """
    from sepkit.files import write_text
    from sepkit.studies.speaker_clustering.measures import table_of

    text = table_of(scores)
    print(text)
    return write_text(out, text)


COMMANDS = {"score": score, "table": table}
