"""`sepkit voices ...`: measure encoders of voices on collections with known speakers."""

from pathlib import Path


def score(model: str, *, collection: str, out: str, seeds: int = 3) -> Path:
    """Write how well each rule of an encoder finds the speakers of a collection, their number known.

    Example:
        sepkit voices score exp/encoder --collection data/voices --out scores/moco/0.json

    Args:
        model: folder that `sepkit train --config speaker_encoder` wrote, an encoder that ships, mean_mfcc or
            mean_log_mel
        collection: folder that `sepkit prepare voices` wrote, or its voices.csv
        out: file to write, FILE.json; tables label the method by the name of its folder
        seeds: number of seeds of k-means; scores are means over them
    """
    from sepkit.files import write_json
    from sepkit.studies.speaker_clustering.measures import read_collection, score_encoder

    return write_json(out, score_encoder(model, read_collection(collection), seeds))


def table(scores: list[str], *, out: str) -> Path:
    """Write a table of scores, mean and deviation over the runs of each method.

    Example:
        sepkit voices table scores/moco/0.json scores/moco/1.json --out voices.md

    Args:
        scores: files that `sepkit voices score` wrote, METHOD/RUN.json
        out: file to write, FILE.md
    """
    from sepkit.files import write_text
    from sepkit.studies.speaker_clustering.measures import table_of

    text = table_of(scores)
    print(text)
    return write_text(out, text)


COMMANDS = {"score": score, "table": table}
