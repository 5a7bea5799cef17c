"""`sepkit voices ...`: measure encoders of voices on collections with known speakers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_DEFAULT_SNR_DB = (5.0, 15.0)


@dataclass(frozen=True, kw_only=True)
class VoicesOptions:
    """Write utterances of known speakers, clean or each with noise and a band tilt of its own, to measure clusters on.

    Args:
        speech: folder of single-speaker recordings, as for `sepkit prepare folder`
        out: folder of SPEAKER/NAME.flac and voices.csv (path, start_seconds, duration_seconds, speaker)
        split: train, dev or test: whose speakers to use, where the folder has splits
        speaker_from: how to find the speaker, see `sepkit prepare folder`
        like: regular expression that names of speakers match; default: all
        speakers: number of speakers, those with most recordings first; default: all
        noisy: add noise at 5 to 15 dB and a band tilt (four cosines of 0.3 nepers) to each utterance
        snr_db: range of the signal-to-noise ratio of --noisy, dB
        sample_rate: Hz
        separated: a model: mix each utterance with one of another speaker of the collection, within 2.5 dB of equal
            level, separate the two, and keep the estimate of the utterance
        seed: of noise, tilts and mixtures
    """

    speech: Path
    out: Path
    split: str = "test"
    speaker_from: str = "first"
    like: str = ""
    speakers: int | None = None
    noisy: bool = False
    snr_db: tuple[float, float] = _DEFAULT_SNR_DB
    sample_rate: int = 8000
    separated: str | None = None
    seed: int = 0


def score(model: str, *, collection: str, out: str, seeds: int = 3) -> Path:
    """Write how well each rule of an encoder finds the speakers of a collection, their number known.

    Args:
        model: folder that `sepkit train --config speaker_encoder` wrote, an encoder that ships, mean_mfcc or
            mean_log_mel
        collection: folder that `sepkit prepare voices` wrote, or its voices.csv
        out: the file, FILE.json; tables call the method by the name of its folder
        seeds: of k-means, whose mean counts

    Returns:
        The file.
    """
    from sepkit.files import write_json
    from sepkit.studies.speaker_clustering.measures import read_collection, score_encoder

    return write_json(out, score_encoder(model, read_collection(collection), seeds))


def count(
    model: str,
    *,
    dev: list[str],
    collection: str,
    out: str,
    meetings: list[str] | None = None,
    collections: int = 100,
    most: int = 10,
    seconds: tuple[float, float] = (20.0, 60.0),
    seed: int = 0,
) -> Path:
    """Calibrate how an encoder counts speakers on dev collections, and measure it on collections of 1 to N speakers.

    Dev collections give the threshold for recordings of one person each. Separated meetings give the two for estimates:
    as a whole, in parts, and of each person alone. What is found is kept beside the encoder.

    Args:
        model: folder of an encoder, mean_mfcc or mean_log_mel
        dev: folders that `sepkit prepare voices` wrote, of dev speakers
        collection: one of test speakers, that collections are drawn from
        meetings: folders that `sepkit prepare conversation` wrote, of dev speakers, with what `sepkit separate` made of
            mixture.flac in separated/
        out: the file, FILE.json
        collections: how many are drawn
        most: speakers of the largest
        seconds: range of the speech of each speaker
        seed: of the draws

    Returns:
        The file.
    """
    from sepkit.studies.speaker_clustering.counting import CountOptions, count_trial

    options = CountOptions(collections, most, seconds, seed)
    result = count_trial(model, dev, collection, out, options, meetings or [])
    test = result["test"]
    print(f"exact in {100 * test['exact']:.0f} %, within one in {100 * test['within_one']:.0f} %")
    return Path(out)


def table(scores: list[str], *, out: str) -> Path:
    """Write a table of scores, mean and deviation over the runs of each method.

    Args:
        scores: files that `sepkit voices score` wrote, METHOD/RUN.json
        out: the file, FILE.md

    Returns:
        The file.
    """
    from sepkit.files import write_text
    from sepkit.studies.speaker_clustering.measures import table_of

    text = table_of(scores)
    print(text)
    return write_text(out, text)


def project(
    model: str, *, collections: list[str], out: str, domains: list[str] | None = None, dimensions: int = 48
) -> Path:
    """Fit a linear map of embeddings and spectra in which recordings differ much and parts of one recording little.

    Who speaks is not used. Differences between collections, such as clean and noisy, are left out.

    Args:
        model: folder of an encoder with one head, or one that ships
        collections: folders that `sepkit prepare voices` wrote, of training speakers
        out: folder of the new encoder
        domains: regular expressions: speakers of a collection that match are of another corpus
        dimensions: of the new embeddings

    Returns:
        The folder.
    """
    from sepkit.studies.speaker_clustering.projection import project_encoder

    return project_encoder(model, collections, domains or [], dimensions, out)


COMMANDS = {"score": score, "count": count, "table": table, "project": project}
