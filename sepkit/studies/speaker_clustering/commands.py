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


def draw(models: list[str], *, collection: str, out: str, seed: int = 0) -> Path:
    """Draw encoders on a collection of known speakers: t-SNE of embeddings, and histograms of MiCE's posteriors.

    Args:
        models: folders that `sepkit train --config speaker_encoder` wrote, or speaker_encoder_mice
        collection: folder that `sepkit prepare voices` wrote, or its voices.csv
        out: folder for tsne.png and, of a mixture of experts, posteriors.png
        seed: of t-SNE, k-means and the untrained weights beside the trained ones
    """
    from sepkit.studies.speaker_clustering.measures import draw, read_collection

    for path in draw(models, read_collection(collection), Path(out), seed):
        print(path)
    return Path(out)


COMMANDS = {"score": score, "table": table, "draw": draw}
