"""The options of each corpus, declared once: `sepkit prepare CORPUS` is made from them and `prepare_CORPUS` takes them.

To add a corpus, write three things: a dataclass like these (its docstring is the command's help, a field without a
default is a required option), a function that takes it and returns what was written, and a line in
`sepkit.cli.prepare`. This module imports neither numpy nor torch, so that the help answers at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from sepkit.choices import check_bounds
from sepkit.errors import Bounds, UserError
from sepkit.limits import PROCESSES, SEGMENT_SECONDS
from sepkit.numbers import Items, NotNegative, Range, SampleRate, Seed

Mode = Literal["min", "max"]
Seconds = Annotated[float, Bounds(ge=0.01, le=SEGMENT_SECONDS)]


@dataclass(frozen=True, kw_only=True)
class MiniOptions:
    """Synthesize speech with espeak-ng on this machine, and describe mixtures of it; nothing is downloaded.

    Example:
        sepkit prepare mini --out data/mini

    Args:
        out: folder of the manifests and the recordings
        speakers: sources in a mixture, at most 8
        train_voices: number of voice variants in train (default: all 55)
        train_sentences: recordings of each voice of train
        heldout_sentences: recordings of each voice of dev (8 voices) and test (16 voices)
        train_mixtures: number of training mixtures
        dev_mixtures: number of dev mixtures
        test_mixtures: number of test mixtures
        sample_rate: sample rate, Hz
        segment_seconds: length of the mixtures of dev and test
        gain_range_db: range of each source's gain, uniform in +-N, relative to equal level
        seed: seed of texts, accents, pitches, speaking rates, choices, crops and gains
    """

    out: Path
    speakers: Items = 2
    train_voices: Items | None = None
    train_sentences: Items = 28
    heldout_sentences: Items = 12
    train_mixtures: Items = 2000
    dev_mixtures: Items = 100
    test_mixtures: Items = 100
    sample_rate: SampleRate = 8000
    segment_seconds: Seconds = 4.0
    gain_range_db: NotNegative = 2.5
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class PulsesOptions:
    """Make mixtures of Gaussian pulses and noise, and test sets of 18 further conditions; nothing is downloaded.

    Example:
        sepkit prepare pulses --out data/pulses

    Args:
        out: folder of the manifests and the recordings
        train_mixtures: number of training mixtures
        dev_mixtures: number of dev mixtures
        test_mixtures: number of test mixtures of each condition
        seconds: length of the mixtures
        sample_rate: sample rate, Hz
        conditions: test conditions to make beside that of training (noise_low noise_high ...) (default: all)
    """

    out: Path
    train_mixtures: Items = 2048
    dev_mixtures: Items = 128
    test_mixtures: Items = 1024
    seconds: Seconds = 3.0
    sample_rate: SampleRate = 8000
    conditions: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Describe mixtures of any tree of single-speaker recordings.

    Example:
        sepkit prepare folder --speech recordings --out data/own

    Args:
        out: folder of the manifests
        speech: folder of recordings; folders named train, dev and test (or train-clean-100 ...) are the splits, and
            without them the speakers are divided 80/10/10
        kaldi: Kaldi data folder (wav.scp, utt2spk) in place of --speech
        noise: folder of noise to add, divided like the speech (default: no noise)
        speaker_from: rule that finds the speaker: first (the first folder below the split's), parent (the file's
            folder), regex:PATTERN (first group, on the path below --speech) or csv:FILE (columns path and speaker,
            optionally split and sex)
        groups: test sets, one for each NAME, made of the speakers whose whole identifier matches PATTERN
        train_group: name of the group whose speakers train and dev use (default: all speakers)
        speakers: sources in a mixture; several numbers (1 2 3): mixtures of each in equal shares
        sample_rate: sample rate of the mixtures, Hz
        segment_seconds: length of the mixtures of dev and test
        train_mixtures: number of training mixtures (default: 3000, or the number of utterances if that is larger)
        dev_mixtures: number of dev mixtures
        test_mixtures: number of test mixtures of each group
        gain_range_db: range of each source's gain, uniform in +-N, relative to equal level
        noise_snr_db: lowest and highest ratio of speech to noise
        noisy_and_clean: write the same test mixtures with and without their noise, test_noisy.jsonl and
            test_clean.jsonl in place of test.jsonl; likewise for each group
        seed: seed of splits, choices, crops and gains
    """

    out: Path
    speech: Path | None = None
    kaldi: Path | None = None
    noise: Path | None = None
    speaker_from: str = "first"
    groups: Sequence[str] | None = None
    train_group: str | None = None
    speakers: Sequence[Items] = (2,)
    sample_rate: SampleRate = 8000
    segment_seconds: Seconds = 4.0
    train_mixtures: Items | None = None
    dev_mixtures: Items = 200
    test_mixtures: Items = 300
    gain_range_db: NotNegative = 2.5
    noise_snr_db: Range = (0.0, 15.0)
    noisy_and_clean: bool = False
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class ConversationOptions:
    """Write one long recording of speakers with pauses, overlaps and silences of up to 30 s, with its sources.

    Example:
        sepkit prepare conversation --speech recordings --out data/conversation

    Args:
        speech: folder of single-speaker recordings, as for `sepkit prepare folder`
        out: folder of mixture.flac, s1.flac, s2.flac ... and conversation.jsonl
        split: split whose speakers are used, if the folder has splits: train, dev or test
        minutes: length of the recording, minutes
        speakers: number of speakers, drawn among those with at least half as many recordings as the speaker with most
        max_overlap: largest number of speakers at once, with turn-taking (default: speakers talk without regard to each
            other)
        speaker_from: rule that finds the speaker, see `sepkit prepare folder`
        texts: transcripts, a line 'NAME WORDS' for each recording, NAME being its file name without extension, as
            Kaldi's text: also write conversation.seglst.json, who said what when
        sample_rate: sample rate, Hz
        gain_range_db: range of each speaker's gain, uniform in +-N, relative to equal level
        seed: seed of speakers, order, pauses and gains
    """

    speech: Path
    out: Path
    split: str = "test"
    minutes: Annotated[float, Bounds(gt=0, le=1440)] = 60.0
    speakers: Items = 2
    max_overlap: Items | None = None
    speaker_from: str = "first"
    texts: Path | None = None
    sample_rate: SampleRate = 8000
    gain_range_db: NotNegative = 2.5
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class MixedOptions:
    """Describe a corpus that is already mixed: a folder, a CSV file, a Kaldi folder, or mix/, s1/, s2/ one by one.

    Example:
        sepkit prepare mixed corpus --out data/mixed

    Args:
        folder: folder with mix/ s1/ s2/, with ID/mix.wav ID/s1.wav, with ID_mix.wav ID_s1.wav, or with wav.scp spk1.scp
            spk2.scp; or a CSV file of LibriMix, asteroid or SpeechBrain
        mixture: folder of the mixtures, in place of FOLDER
        sources: one folder of references for each speaker, with the file names of --mixture
        noise: folder of the noises in the mixtures, if they are known
        pattern: path of the mixtures below FOLDER, such as '{id}_mix.wav', and of each reference, unless their names
            only have s1, s2 ... in place of mix
        out: folder of the manifest
    """

    folder: Path | None = field(default=None, metadata={"positional": True})
    mixture: Path | None = None
    sources: Sequence[Path] | None = None
    noise: Path | None = None
    pattern: Sequence[str] | None = None
    out: Path


@dataclass(frozen=True, kw_only=True)
class _PublishedOptions:
    """Options of all corpora with published mixing lists.

    Args:
        out: folder of the manifests, and of the wavs if they are written
        sample_rate: sample rate, 8000 or 16000 Hz
        mode: length of mixtures: min (that of the shortest source) or max (that of the longest)
        write: write the wavs in the corpus's own layout below --out (default: mixtures are mixed on the fly)
        processes: number of processes (default: the number of processors)
    """

    out: Path
    sample_rate: SampleRate = 8000
    mode: Mode = "min"
    write: bool = False
    processes: Annotated[int | None, Bounds(ge=1, le=PROCESSES)] = None


def check_variant(options: _PublishedOptions) -> None:
    """Raise UserError unless there is such a variant of a published corpus."""
    check_bounds(options)
    if options.sample_rate not in (8000, 16000):
        raise UserError(f"--sample-rate {options.sample_rate}: expected 8000 or 16000")
    if options.mode not in ("min", "max"):
        raise UserError(f"--mode {options.mode}: expected min or max")


@dataclass(frozen=True, kw_only=True)
class WSJ0MixOptions(_PublishedOptions):
    """Make WSJ0-mix from the published mixing lists and active levels; WSJ0 itself is licensed (LDC93S6A).

    Example:
        sepkit prepare wsj0-mix --wsj0 wsj0 --lists lists --out data/wsj0-2mix

    Args:
        wsj0: the folder wsj0 with si_tr_s, si_dt_05 and si_et_05 (wav, flac or sphere, of wv1), or the one above it
        lists: folder of mix_2_spk_tr.txt, ..._cv.txt, ..._tt.txt, and activlev/ with the tables of active levels;
            without tables the levels are measured by ITU-T P.56
        speakers: sources in a mixture, 2 to 5
    """

    wsj0: Path
    lists: Path
    speakers: Annotated[int, Bounds(ge=2, le=5)] = 2


@dataclass(frozen=True, kw_only=True)
class LibriMixOptions(_PublishedOptions):
    """Make Libri2Mix or Libri3Mix from the official metadata, described or written sample for sample.

    Example:
        sepkit prepare librimix --librispeech LibriSpeech --wham-noise wham --metadata Libri2Mix --out data/libri2mix

    Args:
        out: folder of the manifests: train.jsonl ... (mix_clean), train_noisy.jsonl ... (mix_both), train_single.jsonl
            ... (first speaker and noise), and of the wavs if they are written
        librispeech: folder of LibriSpeech (train-clean-100/ and so on), or the one above it
        wham_noise: folder of the WHAM noise (tr/, cv/, tt/), or the one above it
        metadata: folder of libri2mix_train-clean-100.csv and so on; every table found there is prepared
        speakers: sources in a mixture, 2 or 3
    """

    librispeech: Path
    wham_noise: Path
    metadata: Path
    speakers: Annotated[int, Bounds(ge=2, le=9)] = 2


@dataclass(frozen=True, kw_only=True)
class VCTK2MixOptions(_PublishedOptions):
    """Make VCTK-2mix from the official metadata: a test set unlike the usual training sets.

    Example:
        sepkit prepare vctk-2mix --vctk VCTK --wham-noise wham_noise --metadata md --out data/vctk

    Args:
        out: folder of the manifests: test.jsonl (mix_clean), test_noisy.jsonl (mix_both), test_single.jsonl (first
            speaker and noise), and of the wavs if they are written
        vctk: folder of VCTK 0.80 (wav48/), or the one above it
        wham_noise: folder of the WHAM noise (tt/), or the one above it
        metadata: folder of VCTK2mix_VCTK_md.csv
    """

    vctk: Path
    wham_noise: Path
    metadata: Path


@dataclass(frozen=True, kw_only=True)
class WavsOptions:
    """Write the mixtures of a manifest as wavs (mix/, s1/, s2/ ...), to listen to or for other toolkits.

    Example:
        sepkit prepare wavs --manifest data/mini/test.jsonl --out wavs --first 10

    Args:
        manifest: manifest of the mixtures
        out: folder of the wavs
        first: number of mixtures to write, from the first (default: all)
    """

    manifest: Path
    out: Path
    first: Items | None = None


DownloadName = Literal[
    "librispeech", "speechocean762", "esc-10", "speech-commands-noise", "wham-noise", "vctk", "librimix-metadata",
    "vctk-2mix-metadata", "wsj0-mix-lists", "onnxruntime-web",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DownloadOptions:
    """Fetch a corpus into a cache and unpack it; the same command again continues. WSJ0 is licensed: buy LDC93S6A.

    Example:
        sepkit download librispeech --cache corpora

    Args:
        name: the corpus; its size is printed before anything is fetched
        cache: folder that all corpora may share
        parts: archives to fetch, for example train-clean-100 train-clean-360 dev-clean test-clean (default: those of
            100 hours of training)
        mirror: address of a folder that contains the archives under their own names (default: their publishers)
        checksums: file as md5sum or sha256sum write it, for a mirror with archives other than the published ones
        remove_archives: delete each archive when it is unpacked
    """

    name: DownloadName = field(metadata={"positional": True})
    cache: Path
    parts: Sequence[str] | None = None
    mirror: str | None = None
    checksums: Path | None = None
    remove_archives: bool = False
