"""`sepkit prepare CORPUS`: recordings in, manifests out."""

from __future__ import annotations

from pathlib import Path


def folder(
    *,
    out: str,
    speech: str | None = None,
    noise: str | None = None,
    speaker_from: str = "first",
    kaldi: str | None = None,
    groups: list[str] | None = None,
    speaker_info: str | None = None,
    speakers: int = 2,
    sample_rate: int = 8000,
    segment_seconds: float = 4.0,
    train_mixtures: int | None = None,
    dev_mixtures: int = 200,
    test_mixtures: int = 300,
    gain_range_db: float = 2.5,
    noise_snr_db: list[float] | None = None,
    seed: int = 0,
) -> Path:
    """Manifests of mixtures from any tree of single-speaker recordings.

    Args:
        out: folder of the manifests
        speech: folder of recordings; folders called train, dev and test (or train-clean-100 ...) are the splits, and without them the speakers are divided 80/10/10
        noise: folder of noise to add, divided like the speech; default: no noise
        speaker_from: who speaks: first (the first folder below the split's), parent (the file's folder), regex:PATTERN (first group, on the path below --speech) or csv:FILE (columns path, speaker, and if you like split, sex)
        kaldi: Kaldi data folder (wav.scp, utt2spk) in place of --speech
        groups: NAME=PATTERN ...: one test set each, of the speakers whose identifier matches the whole pattern
        speaker_info: CSV with columns speaker and sex, or a SPEAKERS.TXT; default: the SPEAKERS.TXT in or just above --speech
        speakers: sources in a mixture
        sample_rate: Hz of the mixtures
        segment_seconds: length of the mixtures of dev and test
        train_mixtures: how many; default: 3000, or as many as there are utterances
        dev_mixtures: how many
        test_mixtures: how many, of each group
        gain_range_db: each source's gain is uniform in +- this, relative to equal level
        noise_snr_db: lowest and highest ratio of speech to noise (default 0 15)
        seed: of splits, choices, crops and gains

    Returns:
        The folder of the manifests.
    """
    from sepkit.corpora.folder import prepare_folder

    return prepare_folder(
        speech,
        out,
        noise,
        speaker_from,
        kaldi,
        groups=groups or (),
        speaker_info=speaker_info,
        speakers=speakers,
        sample_rate=sample_rate,
        segment_seconds=segment_seconds,
        train_mixtures=train_mixtures,
        dev_mixtures=dev_mixtures,
        test_mixtures=test_mixtures,
        gain_range_db=gain_range_db,
        noise_snr_db=tuple(noise_snr_db or (0.0, 15.0)),  # type: ignore[arg-type]
        seed=seed,
    )


COMMANDS = {"folder": folder}
