"""Options of `sepkit prepare voices`, and the configuration of a contrastive training; torch-free."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from sepkit.config import SpeakerEncoderConfig, TaskConfig, TrainerConfig
from sepkit.errors import Bounds, UserError
from sepkit.inference.options import SpeakerFeatures
from sepkit.limits import BATCH_SIZE, QUEUE
from sepkit.numbers import Count, Dropout, NotNegative, Positive, Range, SampleRate, Seed, Share, Workers

Loss = Literal["moco", "mice", "speakers"]
Seconds = Annotated[float, Bounds(ge=0.25, le=60)]


@dataclass(frozen=True, kw_only=True)
class VoicesOptions:
    """Write utterances of known speakers, clean or each with noise and a band tilt of its own, to measure clusters on.

    Example:
        sepkit prepare voices --speech recordings --out data/voices

    Args:
        speech: folder of single-speaker recordings, as for `sepkit prepare folder`
        out: folder of SPEAKER/NAME.flac and voices.csv (path, start_seconds, duration_seconds, speaker)
        split: split whose speakers are used, if the folder has splits: train, dev or test
        speaker_from: rule that finds the speaker, see `sepkit prepare folder`
        regex: regular expression that the names of speakers match (default: all speakers)
        speakers: number of speakers, those with most recordings first (default: all)
        recordings: largest number of recordings of each speaker (default: all)
        noisy: add noise at 5 to 15 dB and a band tilt (four cosines of 0.3 nepers) to each utterance
        snr_db: range of the signal-to-noise ratio of --noisy, dB
        sample_rate: Sample rate, Hz
        separated: model that separates mixtures of each utterance and one of another speaker, within 2.5 dB of equal
            level; the estimate of the utterance is written
        noise: folder of noise recordings, which half of the mixtures get at 3 to 20 dB, with --separated
        seed: seed of noise, tilts and mixtures
    """

    speech: Path
    out: Path
    split: str = "test"
    speaker_from: str = "first"
    regex: str = ""
    speakers: Count | None = None
    recordings: Count | None = None
    noisy: bool = False
    snr_db: Range = (5.0, 15.0)
    sample_rate: SampleRate = 8000
    separated: str | None = None
    noise: Path | None = None
    seed: Seed = 0


@dataclass
class ViewConfig:
    """Crop and augmentation of a segment; every view draws its own values.

    Args:
        crop_seconds: Length of a view.
        shortest_seconds: With loss speakers: views of a batch are cut to a length from this one to `crop_seconds`;
            none: not cut.
        pause_probability: Share of views that are silent in a part, 20 to 60 %, at their beginning or end, except for
            noise.
        speechless_probability: With model.speech: share of views that are noise alone.
        noise_probability: With data.noise: share of views with one of its recordings, at levels as `snr_db`.
        gain_db: Gains are uniform within this range up and down.
        snr_db: Range of the signal-to-noise ratio of colored noise, dB.
        clean_probability: Share of views without noise; clean recordings are unfamiliar to an encoder trained only on
            noisy ones.
        tilt_nepers: Standard deviation of each of four cosines over frequency that color a view, as a microphone does.
        room_probability: Share of views with reverberation: noise that decays by 60 dB in 0.1 to 0.4 s.
        telephone_probability: Share of views with the band of a telephone, about 300 to 3,400 Hz.
        codec_probability: Share of views that are encoded as mp3, from the highest to the lowest bit rate.
        other_probability: Share of views with a second, weaker speaker, as in separated estimates.
        other_db: Range of how much weaker the second speaker is, dB.
        separated_probability: With data.separated: share of views that are cut from separated estimates.
        longest_time_mask: Longest mask over time, share of the view.
        longest_band_mask: Widest mask over bands, share of the bands.
    """

    crop_seconds: Seconds = 1.0
    shortest_seconds: Seconds | None = None
    pause_probability: Share = 0.0
    speechless_probability: Share = 0.0
    noise_probability: Share = 0.0
    gain_db: NotNegative = 6.0
    snr_db: Range = (5.0, 25.0)
    clean_probability: Share = 0.0
    tilt_nepers: NotNegative = 0.3
    room_probability: Share = 0.3
    telephone_probability: Share = 0.0
    codec_probability: Share = 0.0
    other_probability: Share = 0.0
    other_db: Range = (8.0, 20.0)
    separated_probability: Share = 0.5
    longest_time_mask: Share = 0.15
    longest_band_mask: Share = 0.15


@dataclass
class SegmentDataConfig:
    """Segments in which one speaker is active.

    Args:
        train: Folder of recordings of one speaker each, or a CSV file of segments (path, start_seconds,
            duration_seconds). Labels are not used.
        dev: Folder or CSV file like `train`, with labels for validation: the first folder, or the column `speaker`.
        teacher: With loss speakers: FILE.onnx of another speaker encoder, whose embeddings of the segments are learned,
            too.
        teacher_features: Input of the teacher, if its file does not state it.
        speeds: With loss speakers: segments of `train` are also played at these speeds, such as 0.9 and 1.1, each
            speaker as another one.
        noise: Folder of recordings of noise.
        separated: Folder with estimates of recordings of `train` under the same relative paths, of the same length, as
            `sepkit prepare voices --separated MODEL` writes: separated speech sounds different. Recordings without one
            are used as they are.
        batch_size: Segments in a batch; features are normalized over it.
        workers: Processes that make views; recordings are in memory.
        min_seconds: Shorter segments are left out.
        max_seconds: Longer segments are cut into several.
        views: Crops and augmentation.
    """

    train: str | None = None
    dev: str | None = None
    teacher: str | None = None
    teacher_features: SpeakerFeatures | None = None
    speeds: Annotated[list[float], Bounds(ge=0.5, le=2)] = field(default_factory=list)
    noise: str | None = None
    separated: str | None = None
    batch_size: Annotated[int, Bounds(ge=2, le=BATCH_SIZE)] = 64
    workers: Workers = 0
    min_seconds: Annotated[float, Bounds(ge=0.25, lt=math.inf)] = 0.5
    max_seconds: Positive = 20.0
    views: ViewConfig = field(default_factory=ViewConfig)


@dataclass
class ContrastiveObjectiveConfig:
    """InfoNCE, or a mixture of contrastive experts.

    Args:
        temperature: Temperature tau of the experts. With 1, as in the paper, a training takes hours rather than
            minutes.
        gate_temperature: Temperature kappa of the gate.
        queue: Number of embeddings that instances are contrasted with; shortened if there are fewer instances.
        teacher_decay: Decay of the exponential moving average that is the teacher; 0.999 never moves in a run of some
            hundred steps.
        analytical_update: Whether prototypes are set to the mean direction of their members after each epoch (equation
            13).
        prototype_gradient: Whether the gradient reaches prototypes.
        start_from_clusters: Whether MiCE starts from k-means on the encoder of `init_from`.
    """

    temperature: Positive = 0.3
    gate_temperature: Positive = 0.3
    queue: Annotated[int, Bounds(ge=1, le=QUEUE)] = 512
    teacher_decay: Dropout = 0.99
    analytical_update: bool = True
    prototype_gradient: bool = True
    start_from_clusters: bool = False


@dataclass
class SpeakerClusteringConfig(TaskConfig, name="speaker_clustering"):
    """Train an encoder of voices, without labels or with them.

    Args:
        model: The encoder of voices.
        loss: moco: InfoNCE, one head. mice: a mixture of contrastive experts, one for each cluster. speakers: learn
            labels of speakers, and a teacher's embeddings if there is one.
        objective: Temperatures, the queue and the teacher.
        data: The segments that it learns from.
        trainer: Optimization, budget and devices.
        init_from: Folder of an encoder whose weights training starts from.
    """

    model: SpeakerEncoderConfig = field(default_factory=SpeakerEncoderConfig)
    loss: Loss = "moco"
    objective: ContrastiveObjectiveConfig = field(default_factory=ContrastiveObjectiveConfig)
    data: SegmentDataConfig = field(default_factory=SegmentDataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    init_from: str | None = None

    @property
    def views(self) -> int:
        """Crops of each instance: for student, teacher and gate."""
        return {"moco": 2, "mice": 3, "speakers": 1}[self.loss]

    def check(self) -> None:
        """Raise UserError if a number is outside its range, parts contradict each other, or there is no data."""
        super().check()
        model, data, views = self.model, self.data, self.data.views
        mice = self.loss == "mice"
        if data.train is None:
            raise UserError(
                "data.train: nothing given, expected a folder of recordings or a CSV file of segments "
                "(--data.train PATH)"
            )
        Bounds(ge=data.min_seconds).check("data.max_seconds", data.max_seconds)
        Bounds(le=views.crop_seconds).check("data.views.shortest_seconds", views.shortest_seconds)
        Bounds(ge=views.snr_db[0]).check("data.views.snr_db", views.snr_db[1])
        Bounds(ge=views.other_db[0]).check("data.views.other_db", views.other_db[1])
        if model.gate == "fixed":
            Bounds(le=model.dimensions + 1, note=", one more than model.dimensions").check(
                "model.experts", model.experts
            )
        contradictions = {
            f"loss: {self.loss} has one head and no gate; set model.experts to 1 and model.gate to none": (
                not mice and (model.experts != 1 or model.gate != "none")
            ),
            "loss: mice needs a gate; set model.gate to fixed (or uniform, learned, random)": (
                mice and model.gate == "none"
            ),
            "objective.start_from_clusters: needs loss mice and init_from, an encoder to start from": (
                self.objective.start_from_clusters and (not mice or self.init_from is None)
            ),
            "loss: model.speech, data.teacher and data.speeds need loss speakers": (
                self.loss != "speakers" and (model.speech or data.teacher is not None or data.speeds)
            ),
            "data.views.speechless_probability: needs model.speech": (
                views.speechless_probability and not model.speech
            ),
            "trainer.devices: task speaker_clustering trains on one device; leave --devices out": (
                self.trainer.devices * self.trainer.num_nodes > 1
            ),
        }
        for message in (message for message, found in contradictions.items() if found):
            raise UserError(message)
