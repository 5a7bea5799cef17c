"""Options of `sepkit prepare voices`, and the configuration of a contrastive training; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sepkit.config import SpeakerEncoderConfig, TaskConfig, TrainerConfig
from sepkit.errors import UserError
from sepkit.inference.options import SpeakerFeatures
from sepkit.limits import QUEUE

Loss = Literal["moco", "mice", "speakers"]


@dataclass(frozen=True, kw_only=True)
class VoicesOptions:
    """Write utterances of known speakers, clean or each with noise and a band tilt of its own, to measure clusters on.

    Args:
        speech: folder of single-speaker recordings, as for `sepkit prepare folder`
        out: folder of SPEAKER/NAME.flac and voices.csv (path, start_seconds, duration_seconds, speaker)
        split: train, dev or test: whose speakers to use, where the folder has splits
        speaker_from: how to find the speaker, see `sepkit prepare folder`
        regex: regular expression that names of speakers match; default: all
        speakers: number of speakers, those with most recordings first; default: all
        recordings: of each speaker at most; default: all
        noisy: add noise at 5 to 15 dB and a band tilt (four cosines of 0.3 nepers) to each utterance
        snr_db: range of the signal-to-noise ratio of --noisy, dB
        sample_rate: Hz
        separated: a model: mix each utterance with one of another speaker of the collection, within 2.5 dB of equal
            level, separate the two, and keep the estimate of the utterance
        noise: with --separated: folder of recordings of noise, which half of the mixtures get at 3 to 20 dB
        seed: of noise, tilts and mixtures
    """

    speech: Path
    out: Path
    split: str = "test"
    speaker_from: str = "first"
    regex: str = ""
    speakers: int | None = None
    recordings: int | None = None
    noisy: bool = False
    snr_db: tuple[float, float] = (5.0, 15.0)
    sample_rate: int = 8000
    separated: str | None = None
    noise: Path | None = None
    seed: int = 0


@dataclass
class ViewConfig:
    """How a view of a stretch is made; every view draws its own values."""

    crop_seconds: float = 1.0
    """Length of a view."""
    shortest_seconds: float | None = None
    """With loss speakers: views of a batch are cut to a length from this one to `crop_seconds`; none: not cut."""
    pause_probability: float = 0.0
    """Share of views that are silent in a part, 20 to 60 %, at their beginning or end, but for noise."""
    speechless_probability: float = 0.0
    """With model.speech: share of views that are noise alone."""
    noise_probability: float = 0.0
    """With data.noise: share of views with one of its recordings, at levels as `snr_db`."""
    gain_db: float = 6.0
    """Gains are uniform within this range up and down."""
    snr_db: tuple[float, float] = (5.0, 25.0)
    """Range of the signal-to-noise ratio of colored noise, dB."""
    clean_probability: float = 0.0
    """Share of views without noise; clean recordings are strange to an encoder that has only heard noisy ones."""
    tilt_nepers: float = 0.3
    """Standard deviation of each of four cosines over frequency that color a view, as a microphone does."""
    room_probability: float = 0.3
    """Share of views with reverberation: noise that decays by 60 dB in 0.1 to 0.4 s."""
    other_probability: float = 0.0
    """Share of views with a second, weaker voice, as in separated estimates."""
    other_db: tuple[float, float] = (8.0, 20.0)
    """Range of how much weaker the second voice is, dB."""
    separated_probability: float = 0.5
    """With data.separated: share of views that are cut from separated estimates."""
    longest_time_mask: float = 0.15
    """Longest mask over time, share of the view."""
    longest_band_mask: float = 0.15
    """Widest mask over bands, share of the bands."""


@dataclass
class StretchDataConfig:
    """Stretches in which one person speaks."""

    train: str | None = None
    """Folder of recordings of one speaker each, or a CSV file of stretches (path, start_seconds, duration_seconds).
    Labels are not used."""
    dev: str | None = None
    """The same with labels, for validation: the speaker is the first folder, or the column `speaker`."""
    teacher: str | None = None
    """With loss speakers: FILE.onnx of another speaker encoder, whose embeddings of the stretches are learned, too."""
    teacher_features: SpeakerFeatures | None = None
    """What the teacher hears, where its file does not say so."""
    speeds: list[float] = field(default_factory=list)
    """With loss speakers: `train` is also heard at these speeds, such as 0.9 and 1.1, each speaker as another one."""
    noise: str | None = None
    """Folder of recordings of noise."""
    separated: str | None = None
    """Folder with estimates of recordings of `train` under the same relative paths, of the same length, as
    `sepkit prepare voices --separated MODEL` writes: separated speech sounds different. Recordings without one are
    heard as they are."""
    batch_size: int = 64
    """Stretches in a batch."""
    workers: int = 0
    """Processes that make views; recordings are in memory."""
    min_seconds: float = 0.5
    """Shorter stretches are left out."""
    max_seconds: float = 20.0
    """Longer stretches are cut into several."""
    views: ViewConfig = field(default_factory=ViewConfig)
    """Crops and augmentation."""


@dataclass
class ContrastiveObjectiveConfig:
    """InfoNCE, or a mixture of contrastive experts."""

    temperature: float = 0.3
    """tau, of the experts. With 1, as in the paper, a training takes hours rather than minutes."""
    gate_temperature: float = 0.3
    """kappa, of the gate."""
    queue: int = 512
    """Embeddings that instances are told from; shortened where there are fewer instances."""
    teacher_decay: float = 0.99
    """Of the exponential moving average that is the teacher; 0.999 never moves in a run of some hundred steps."""
    analytical_update: bool = True
    """Whether prototypes are set to the mean direction of their members after each epoch (equation 13)."""
    prototype_gradient: bool = True
    """Whether the gradient reaches prototypes."""
    start_from_clusters: bool = False
    """Whether MiCE starts from k-means on the encoder of `init_from`."""


@dataclass
class SpeakerClusteringConfig(TaskConfig, name="speaker_clustering"):
    """Train an encoder of voices, without labels or with them."""

    model: SpeakerEncoderConfig = field(default_factory=SpeakerEncoderConfig)
    """The encoder of voices."""
    loss: Loss = "moco"
    """moco: InfoNCE, one head. mice: a mixture of contrastive experts, one for each cluster. speakers: learn labels of
    speakers, and a teacher's embeddings if there is one."""
    objective: ContrastiveObjectiveConfig = field(default_factory=ContrastiveObjectiveConfig)
    """Temperatures, the queue and the teacher."""
    data: StretchDataConfig = field(default_factory=StretchDataConfig)
    """The stretches that it learns from."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """Optimization, budget and devices."""
    init_from: str | None = None
    """Folder of an encoder whose weights training starts from."""

    @property
    def views(self) -> int:
        """Crops of each instance: for student, teacher and gate."""
        return {"moco": 2, "mice": 3, "speakers": 1}[self.loss]

    def check(self) -> None:
        """Raise UserError if a number is outside its range, parts contradict each other, or there is no data."""
        super().check()
        if self.data.train is None:
            raise UserError(
                "data.train: nothing given, expected a folder of recordings or a CSV file of stretches "
                "(--data.train PATH)"
            )
        if self.data.batch_size < 2:
            raise UserError("data.batch_size: found 1, expected 2 or more, as features are normalized over a batch")
        if self.loss != "mice" and (self.model.experts != 1 or self.model.gate != "none"):
            raise UserError(
                f"loss: {self.loss} has one head and no gate; set model.experts to 1 and model.gate to none"
            )
        if self.loss == "mice" and self.model.gate == "none":
            raise UserError("loss: mice needs a gate; set model.gate to fixed (or uniform, learned, random)")
        if self.model.gate == "fixed" and self.model.experts > self.model.dimensions + 1:
            raise UserError(
                f"model.experts: found {self.model.experts}, expected at most {self.model.dimensions + 1}, one more "
                "than model.dimensions"
            )
        if self.model.projected:
            raise UserError(
                f"model.projected: found {self.model.projected}, expected 0; fit it after the training with "
                "`sepkit voices project`"
            )
        if self.objective.start_from_clusters and (self.loss != "mice" or self.init_from is None):
            raise UserError("objective.start_from_clusters: needs loss mice and init_from, an encoder to start from")
        for name in ("temperature", "gate_temperature"):
            if not getattr(self.objective, name) > 0:
                raise UserError(f"objective.{name}: found {getattr(self.objective, name)}, expected more than 0")
        if not 1 <= self.objective.queue <= QUEUE:
            raise UserError(f"objective.queue: found {self.objective.queue}, expected 1 to {QUEUE}")
        if not 0 <= self.objective.teacher_decay < 1:
            raise UserError(f"objective.teacher_decay: found {self.objective.teacher_decay}, expected 0 to below 1")
        if self.loss != "speakers" and (self.model.speech or self.data.teacher is not None):
            raise UserError("loss: model.speech and data.teacher need loss speakers")
        if self.data.views.speechless_probability and not self.model.speech:
            raise UserError("data.views.speechless_probability: needs model.speech")
        if self.data.speeds and (self.loss != "speakers" or not all(0.5 <= speed <= 2 for speed in self.data.speeds)):
            raise UserError(f"data.speeds: found {self.data.speeds}, expected 0.5 to 2, and loss speakers")
        self._check_views()
        if self.trainer.devices * self.trainer.num_nodes > 1:
            raise UserError("trainer.devices: task speaker_clustering trains on one device; leave --devices out")

    def _check_views(self) -> None:
        views, data = self.data.views, self.data
        if not 0.25 <= views.crop_seconds <= 60:
            raise UserError(f"data.views.crop_seconds: found {views.crop_seconds}, expected 0.25 to 60")
        if views.shortest_seconds is not None and not 0.25 <= views.shortest_seconds <= views.crop_seconds:
            found = views.shortest_seconds
            raise UserError(f"data.views.shortest_seconds: found {found}, expected 0.25 to data.views.crop_seconds")
        if not 0.25 <= data.min_seconds <= data.max_seconds:
            raise UserError(f"data.min_seconds: found {data.min_seconds}, expected 0.25 to data.max_seconds")
        for name in (
            "clean_probability",
            "pause_probability",
            "speechless_probability",
            "noise_probability",
            "room_probability",
            "other_probability",
            "separated_probability",
            "longest_time_mask",
            "longest_band_mask",
        ):
            if not 0 <= getattr(views, name) <= 1:
                raise UserError(f"data.views.{name}: found {getattr(views, name)}, expected 0 to 1")
        for name in ("snr_db", "other_db"):
            low, high = getattr(views, name)
            if not low <= high:
                raise UserError(f"data.views.{name}: found {low} to {high}, expected the lower number first")
