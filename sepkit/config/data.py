"""The data that separators learn from."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from sepkit.errors import Bounds
from sepkit.limits import EPOCH_MIXTURES, SEGMENT_SECONDS
from sepkit.numbers import BatchSize, Dropout, NotNegative, PositiveRange, Range, Share, Size, Workers


@dataclass
class DynamicMixingConfig:
    """New mixtures every epoch from the training manifest's own recordings.

    Args:
        enabled: Whether to make new mixtures in every epoch, instead of the manifest's.
        gain_range_db: Range of each source's gain, uniform in +-N, relative to equal loudness of the sources.
        speed_range: Largest relative change of each source's speed (0.05: 95 to 105 %).
        one_speaker_share: Share of mixtures with a single speaker, whatever the manifest contains.
        bank_gib: Memory for decoded and resampled recordings, GiB; 0: files are read for every mixture.
        bank_speeds: With a bank: number of speeds within speed_range.
        speaker_weights: PATTERN=WEIGHT ...: sampling weights of speakers whose whole name matches the pattern; the
            first match counts, and the weight of all others is 1.
        noise_probability: Share of mixtures that get noise, if `noise` is given.
        noise: Folder of noise recordings; none: only the manifest's noise.
        noise_snr_db: Range of the speech-to-noise ratio.
        reverberation_probability: Share of mixtures in simulated rooms (needs the extra `reverb`).
        reverberation_cache: Folder of simulated impulse responses; made on first use.
        reverberation_target: Target of a source in a room: its whole reverberant signal, or its first 50 ms; the rest
            is noise then.
        coloring_db: Standard deviation of each of four cosines over frequency that are added to a source's level;
            0: none.
        channel_probability: Share of mixtures that pass through a random transmission channel, such as a telephone
            line: sources and noise are limited to a band; what a codec or clipping adds belongs to the noise.
        highpass_hz: With a channel: range of the cutoff of the high-pass filter, which 85 % of the channels have.
        lowpass_hz: With a channel: range of the cutoff of the low-pass filter, which 60 % of the channels have.
        filter_order: With a channel: range of the order of both filters (Butterworth magnitudes), log-uniform.
        codec_probability: Share of the channels with a codec: mu-law, A-law, GSM, mp3 or opus of a low bit rate.
        clipping_probability: Share of the channels that clip the loudest 0.05 to 2 % of the samples.
        turns_probability: Share of the mixtures without a room whose speakers take two to four turns, and do not
            overlap.
        overlap_probability: Share of mixtures whose sources overlap fully; the others start at a random offset.
    """

    enabled: bool = False
    gain_range_db: NotNegative = 2.5
    speed_range: Dropout = 0.0
    one_speaker_share: Share = 0.0
    bank_gib: NotNegative = 0.0
    bank_speeds: Size = 9
    speaker_weights: list[str] = field(default_factory=list)
    noise_probability: Share = 1.0
    noise: str | None = None
    noise_snr_db: Range = (0.0, 15.0)
    reverberation_probability: Share = 0.0
    reverberation_cache: str | None = None
    reverberation_target: Literal["all", "early"] = "all"
    coloring_db: NotNegative = 0.0
    channel_probability: Share = 0.0
    highpass_hz: PositiveRange = (60.0, 400.0)
    lowpass_hz: PositiveRange = (2500.0, 4000.0)
    filter_order: PositiveRange = (2.0, 60.0)
    codec_probability: Share = 0.3
    clipping_probability: Share = 0.1
    turns_probability: Share = 0.0
    overlap_probability: Share = 1.0


@dataclass
class DataConfig:
    """The data that the model learns from.

    Args:
        train: Manifest of the training mixtures (train.jsonl).
        dev: Manifest of the validation mixtures.
        segment_seconds: Length of training segments, seconds; shorter utterances are padded.
        min_seconds: Length below which training and validation mixtures are left out (the aMCL paper: 5, its
            segment length).
        speeds: Speeds at which sources of the manifest's training mixtures are played, drawn for each (SepFormer: 0.95,
            1, 1.05); none: as they are.
        batch_size: Mixtures in a batch, each device.
        workers: Processes that load data, each device.
        mixtures_per_epoch: With dynamic mixing: mixtures in an epoch; none: as many as the manifest has.
        dynamic_mixing: Training mixtures that are new in every epoch.
    """

    train: str | None = None
    dev: str | None = None
    segment_seconds: Annotated[float, Bounds(gt=0, le=SEGMENT_SECONDS)] = 3.0
    min_seconds: NotNegative = 0.0
    speeds: Annotated[list[float], Bounds(ge=0.5, le=2)] = field(default_factory=list)
    batch_size: BatchSize = 6
    workers: Workers = 2
    mixtures_per_epoch: Annotated[int | None, Bounds(ge=1, le=EPOCH_MIXTURES)] = None
    dynamic_mixing: DynamicMixingConfig = field(default_factory=DynamicMixingConfig)
