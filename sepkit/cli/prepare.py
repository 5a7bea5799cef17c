"""`sepkit prepare CORPUS`: recordings in, manifests out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def mini(
    *,
    out: str,
    speakers: int = 2,
    train_voices: int | None = None,
    train_sentences: int = 28,
    heldout_sentences: int = 12,
    train_mixtures: int = 2000,
    dev_mixtures: int = 100,
    test_mixtures: int = 100,
    sample_rate: int = 8000,
    segment_seconds: float = 4.0,
    gain_range_db: float = 2.5,
    seed: int = 0,
) -> Path:
    """Speech synthesised here by espeak-ng, and manifests of mixtures of it; nothing is downloaded.

    Args:
        out: folder of the manifests and the recordings
        speakers: sources in a mixture, at most 8
        train_voices: how many voice variants train has; default: all, 55
        train_sentences: recordings of each voice of train
        heldout_sentences: recordings of each voice of dev (8 voices) and test (16 voices)
        train_mixtures: how many
        dev_mixtures: how many
        test_mixtures: how many
        sample_rate: Hz
        segment_seconds: length of the mixtures of dev and test
        gain_range_db: each source's gain is uniform in +- this, relative to equal level
        seed: of texts, accents, pitches, rates, choices, crops and gains

    Returns:
        The folder of the manifests.
    """
    from sepkit.corpora.mini import prepare_mini

    return prepare_mini(
        out,
        speakers,
        train_voices=train_voices,
        train_sentences=train_sentences,
        heldout_sentences=heldout_sentences,
        train_mixtures=train_mixtures,
        dev_mixtures=dev_mixtures,
        test_mixtures=test_mixtures,
        sample_rate=sample_rate,
        segment_seconds=segment_seconds,
        gain_range_db=gain_range_db,
        seed=seed,
    )


def pulses(
    *,
    out: str,
    train_mixtures: int = 2048,
    dev_mixtures: int = 128,
    test_mixtures: int = 1024,
    seconds: float = 3.0,
    sample_rate: int = 8000,
    replicate: int = 1,
    conditions: list[str] | None = None,
) -> Path:
    """Mixtures of Gaussian pulses and noise, and test sets of 18 further conditions; nothing is downloaded.

    Args:
        out: folder of the manifests and the recordings
        train_mixtures: how many
        dev_mixtures: how many
        test_mixtures: how many, of each condition
        seconds: length of mixtures
        sample_rate: Hz
        replicate: which of the disjoint sets of examples, from 1
        conditions: names of the conditions to test in beside that of training (noise_low noise_high ...); default: all

    Returns:
        The folder of the manifests.
    """
    from sepkit.corpora.pulses import prepare_pulses

    return prepare_pulses(
        out,
        train_mixtures=train_mixtures,
        dev_mixtures=dev_mixtures,
        test_mixtures=test_mixtures,
        seconds=seconds,
        sample_rate=sample_rate,
        replicate=replicate,
        only_conditions=conditions,
    )


def folder(
    *,
    out: str,
    speech: str | None = None,
    noise: str | None = None,
    speaker_from: str = "first",
    kaldi: str | None = None,
    groups: list[str] | None = None,
    train_group: str | None = None,
    speaker_info: str | None = None,
    speakers: list[int] | None = None,
    sample_rate: int = 8000,
    segment_seconds: float = 4.0,
    train_mixtures: int | None = None,
    dev_mixtures: int = 200,
    test_mixtures: int = 300,
    gain_range_db: float = 2.5,
    noise_snr_db: list[float] | None = None,
    noisy_and_clean: bool = False,
    seed: int = 0,
    shards: bool = False,
) -> Path:
    """Manifests of mixtures from any tree of single-speaker recordings.

    Args:
        out: folder of the manifests
        speech: folder of recordings; folders called train, dev and test (or train-clean-100 ...) are the splits, and
            without them the speakers are divided 80/10/10
        noise: folder of noise to add, divided like the speech; default: no noise
        speaker_from: who speaks: first (the first folder below the split's), parent (the file's folder), regex:PATTERN
            (first group, on the path below --speech) or csv:FILE (columns path, speaker, and if you like split, sex)
        kaldi: Kaldi data folder (wav.scp, utt2spk) in place of --speech
        groups: NAME=PATTERN ...: one test set each, of the speakers whose identifier matches the whole pattern
        train_group: one of the names in --groups; train and dev are of its speakers alone (default: of all speakers)
        speaker_info: CSV with columns speaker and sex, or a SPEAKERS.TXT; default: the SPEAKERS.TXT in --speech or up
            to two folders above it
        speakers: sources in a mixture (default 2); several numbers (1 2 3): mixtures of each in equal shares
        sample_rate: Hz of the mixtures
        segment_seconds: length of the mixtures of dev and test
        train_mixtures: how many; default: 3000, or as many as there are utterances
        dev_mixtures: how many
        test_mixtures: how many, of each group
        gain_range_db: each source's gain is uniform in +- this, relative to equal level
        noise_snr_db: lowest and highest ratio of speech to noise (default 0 15)
        noisy_and_clean: the same test mixtures with and without their noise, as test_noisy.jsonl and test_clean.jsonl
            in place of test.jsonl; likewise for each group
        seed: of splits, choices, crops and gains
        shards: also write tar shards of all manifests, with manifests that read them, into the folder shards of --out

    Returns:
        The folder of the manifests.
    """
    from sepkit.corpora.folder import prepare_folder

    made = prepare_folder(
        speech,
        out,
        noise,
        speaker_from,
        kaldi,
        groups=groups or (),
        train_group=train_group,
        speaker_info=speaker_info,
        speakers=speakers or 2,
        sample_rate=sample_rate,
        segment_seconds=segment_seconds,
        train_mixtures=train_mixtures,
        dev_mixtures=dev_mixtures,
        test_mixtures=test_mixtures,
        gain_range_db=gain_range_db,
        noise_snr_db=noise_snr_db or (0.0, 15.0),
        noisy_and_clean=noisy_and_clean,
        seed=seed,
    )
    return _shard(made) if shards else made


def conversation(
    *,
    speech: str,
    out: str,
    split: str = "test",
    minutes: float = 60.0,
    speakers: int = 2,
    chosen: list[str] | None = None,
    speaker_from: str = "first",
    sample_rate: int = 8000,
    gain_range_db: float = 2.5,
    seed: int = 0,
) -> Path:
    """One long recording of speakers with pauses, overlaps and silences of up to 30 s, its sources, and a manifest.

    Args:
        speech: folder of recordings of single speakers
        out: folder of mixture.flac, s1.flac, s2.flac ... and conversation.jsonl
        split: whose speakers: train, dev or test, where the folder has them
        minutes: length
        speakers: how many
        chosen: who; default: drawn among those with most recordings
        speaker_from: who speaks, see `sepkit prepare folder`
        sample_rate: Hz
        gain_range_db: each speaker's gain is uniform in +- this, relative to equal level
        seed: of speakers, order, pauses and gains

    Returns:
        The manifest.
    """
    from sepkit.corpora.conversation import prepare_conversation

    return prepare_conversation(
        speech,
        out,
        split=split,
        minutes=minutes,
        speakers=speakers,
        chosen=chosen,
        speaker_from=speaker_from,
        sample_rate=sample_rate,
        gain_range_db=gain_range_db,
        seed=seed,
    )


def mixed(*, mixture: str, sources: list[str], out: str, noise: str | None = None) -> Path:
    """A manifest of a corpus that is mixed already: mix/, s1/, s2/ with equal file names.

    Args:
        mixture: folder of mixtures
        sources: one folder of references a speaker
        out: folder of the manifest
        noise: folder of the noises in the mixtures, where it is known

    Returns:
        The manifest.
    """
    from sepkit.corpora.mixed import prepare_mixed

    return prepare_mixed(mixture, sources, out, noise)


def wsj0_mix(
    *,
    wsj0: str,
    lists: str,
    out: str,
    speakers: int = 2,
    sample_rate: int = 8000,
    mode: Literal["min", "max"] = "min",
    write: bool = False,
    shards: bool = False,
    processes: int | None = None,
) -> Path:
    """WSJ0-mix from the published mixing lists and active levels; WSJ0 itself is licensed (LDC93S6A).

    Args:
        wsj0: the folder wsj0 with si_tr_s, si_dt_05 and si_et_05 (wav, flac or sphere, of wv1), or the one above it
        lists: folder of mix_2_spk_tr.txt, ..._cv.txt, ..._tt.txt, and activlev/ with the tables of active levels;
            without tables the levels are measured by ITU-T P.56
        out: folder of the manifests, and of the wavs
        speakers: sources in a mixture, 2 to 5
        sample_rate: 8000 or 16000 Hz
        mode: min (cut to the shortest source) or max (as long as the longest)
        write: make the wavs, 2speakers/wav8k/min/tr/mix ... below --out; without it mixtures are mixed on the fly
        shards: also write tar shards of all manifests, with manifests that read them, into the folder shards of --out
        processes: how many; default: as many as there are processors

    Returns:
        The folder of the manifests.
    """
    from sepkit.corpora.wsj0mix import prepare_wsj0_mix

    made = prepare_wsj0_mix(wsj0, lists, out, speakers, sample_rate, mode, write, processes)
    return _shard(made, processes) if shards else made


def librimix(
    *,
    librispeech: str,
    wham_noise: str,
    metadata: str,
    out: str,
    speakers: int = 2,
    sample_rate: int = 8000,
    mode: Literal["min", "max"] = "min",
    write: bool = False,
    make_metadata: bool = False,
    shards: bool = False,
    processes: int | None = None,
) -> Path:
    """Libri2Mix and Libri3Mix from the official metadata, described or written sample for sample.

    Args:
        librispeech: folder of LibriSpeech (train-clean-100/ and so on)
        wham_noise: folder of the WHAM noise (tr/, cv/, tt/)
        metadata: folder of libri2mix_train-clean-100.csv and its like; those that are there are prepared
        out: folder of the manifests: train.jsonl ... (mix_clean), train_noisy.jsonl ... (mix_both), train_single.jsonl
            ... (first speaker and noise)
        speakers: sources in a mixture, 2 or 3
        sample_rate: 8000 or 16000 Hz
        mode: min (cut to the shortest source) or max (as long as the longest)
        write: make the official tree, Libri2Mix/wav8k/min ... below --out; without it mixtures are mixed on the fly
        make_metadata: first make the tables that --metadata lacks, for a corpus of your own laid out like LibriSpeech
        shards: also write tar shards of all manifests, with manifests that read them, into the folder shards of --out
        processes: how many; default: as many as there are processors

    Returns:
        The folder of the manifests.
    """
    from sepkit.corpora.librimix import prepare_librimix

    made = prepare_librimix(
        librispeech,
        wham_noise,
        metadata,
        out,
        speakers=speakers,
        sample_rate=sample_rate,
        mode=mode,
        write=write,
        make_metadata=make_metadata,
        processes=processes,
    )
    return _shard(made, processes) if shards else made


def vctk_2mix(
    *,
    vctk: str,
    wham_noise: str,
    metadata: str,
    out: str,
    sample_rate: int = 8000,
    mode: Literal["min", "max"] = "min",
    write: bool = False,
    make_metadata: bool = False,
    shards: bool = False,
    processes: int | None = None,
) -> Path:
    """VCTK-2mix from the official metadata, a test set unlike the usual training sets.

    Args:
        vctk: folder of VCTK 0.80 (wav48/)
        wham_noise: folder of the WHAM noise (tt/)
        metadata: folder of VCTK2mix_VCTK_md.csv
        out: folder of the manifests: test.jsonl (mix_clean), test_noisy.jsonl (mix_both), test_single.jsonl (first
            speaker and noise)
        sample_rate: 8000 or 16000 Hz
        mode: min (cut to the shortest source or noise) or max (as long as the longest)
        write: make the official tree, VCTK2Mix/wav8k/min ... below --out; without it mixtures are mixed on the fly
        make_metadata: first make the table if --metadata lacks it, for a corpus of your own laid out like VCTK
        shards: also write tar shards of all manifests, with manifests that read them, into the folder shards of --out
        processes: how many; default: as many as there are processors

    Returns:
        The folder of the manifests.
    """
    from sepkit.corpora.vctk2mix import prepare_vctk2mix

    made = prepare_vctk2mix(
        vctk,
        wham_noise,
        metadata,
        out,
        sample_rate=sample_rate,
        mode=mode,
        write=write,
        make_metadata=make_metadata,
        processes=processes,
    )
    return _shard(made, processes) if shards else made


def wavs(*, manifest: str, out: str, first: int | None = None, subtype: Literal["FLOAT", "PCM_16"] = "FLOAT") -> Path:
    """The mixtures of a manifest as wavs: mix/, s1/, s2/ ..., to listen to or for other toolkits.

    Args:
        manifest: which mixtures
        out: folder of the wavs
        first: only so many, from the beginning; default: all
        subtype: sample format

    Returns:
        The folder of the wavs.
    """
    from sepkit.corpora.wavs import write_wavs

    return write_wavs(manifest, out, first, subtype)


def shards(*, manifest: list[str], out: str, shard_megabytes: float = 500.0, processes: int | None = None) -> Path:
    """Manifests with their recordings as tar shards (WebDataset layout), any item of which can be read alone.

    Args:
        manifest: manifests, such as train.jsonl dev.jsonl
        out: folder of the shards, and of the manifests that read them
        shard_megabytes: how much of the original files goes into a shard, in 10^6 bytes
        processes: how many; default: as many as there are processors

    Returns:
        The folder of the shards.
    """
    from sepkit.corpora.sharding import write_shards

    return write_shards(manifest, out, shard_megabytes, processes)


def audiograms(
    *,
    out: str,
    csv: str | None = None,
    examples: int = 4096,
    archetypes: int = 5,
    spread_db: float = 45.0,
    noise_db: float = 5.0,
    corruption: float = 0.0,
    seed: int = 0,
) -> Path:
    """Synthetic audiograms with their noise-free truth, or with --csv your own, as train.csv, dev.csv and test.csv.

    Args:
        out: folder of the files
        csv: your audiograms, with the columns id, age, right_500 ... left_8000 and, if you like, split; the options
            below, except --seed, are of synthetic ones
        examples: how many people
        archetypes: how many audiograms all others are weighted averages of
        spread_db: standard deviation of a threshold over archetypes
        noise_db: standard deviation of a measurement (years, for age)
        corruption: shift archetypes by noise of this share of the data's standard deviation, for test data unlike the
            training data (0.05 or 0.5 in the thesis); people and measurement noise stay those of the seed
        seed: of everything; with --csv, of the division into splits where the file has none

    Returns:
        The folder of the files.
    """
    from sepkit.studies.acquisition.prepare import prepare_csv, prepare_synthetic

    if csv is not None:
        return prepare_csv(out, csv, seed=seed)
    return prepare_synthetic(
        out,
        examples=examples,
        archetypes=archetypes,
        spread_db=spread_db,
        noise_db=noise_db,
        corruption=corruption,
        seed=seed,
    )


def nhanes(
    *, audiometry: list[str], demographics: list[str], out: str, keep_incomplete: bool = False, seed: int = 0
) -> Path:
    """Audiograms of the NHANES survey from its SAS files, as train.csv, dev.csv and test.csv.

    Args:
        audiometry: AUX1.XPT AUX_B.XPT AUX_C.XPT AUX_G.XPT AUX_I.XPT, those that you have
        demographics: DEMO.XPT DEMO_B.XPT ... of the same years
        out: folder of the files
        keep_incomplete: also keep people of whom a threshold is missing; default: only those with an age and all
            fourteen thresholds
        seed: of the division into train, dev and test

    Returns:
        The folder of the files.
    """
    from sepkit.studies.acquisition.prepare import prepare_nhanes

    return prepare_nhanes(out, audiometry, demographics, keep_incomplete=keep_incomplete, seed=seed)


def _shard(folder: Path, processes: int | None = None) -> Path:
    """The folder of the shards of all manifests in a folder."""
    from sepkit.corpora.sharding import write_shards

    return write_shards(sorted(folder.glob("*.jsonl")), folder / "shards", processes=processes)


COMMANDS = {
    "mini": mini,
    "pulses": pulses,
    "folder": folder,
    "conversation": conversation,
    "mixed": mixed,
    "librimix": librimix,
    "wsj0-mix": wsj0_mix,
    "vctk-2mix": vctk_2mix,
    "wavs": wavs,
    "shards": shards,
    "audiograms": audiograms,
    "nhanes": nhanes,
}
