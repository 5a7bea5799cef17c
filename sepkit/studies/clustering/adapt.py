"""Adapt an encoder of voices to the recordings that are clustered: MiCE's expectation maximization on them alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sepkit.config import SpeakerEncoderConfig, TrainerConfig
from sepkit.data.segments import Segment, write_segments
from sepkit.errors import UserError
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.studies.clustering.config import (
    ContrastiveObjectiveConfig,
    ContrastiveTaskConfig,
    StretchDataConfig,
    ViewConfig,
)
from sepkit.studies.clustering.hearing import ClusterOptions, Heard

_LEARNING_RATE = 0.1
_BATCH_SIZE = 32
_CROP_SECONDS = 1.0
# As long as 6 minutes of speech need; an hour has about 140 steps an epoch and takes minutes this way, too.
_EPOCHS, _STEPS = 40, 2000


def adapt(
    source: Path, encoder: SpeakerEncoder, heard: Heard, speakers: int, out: Path, options: ClusterOptions
) -> Path:
    """Train MiCE with an expert for each speaker on the stretches, and return the folder of the adapted encoder.

    The training starts from k-means with the encoder. A killed one continues when the same call is made again.

    Args:
        source: folder of the encoder.
        encoder: that stands there.
        heard: the stretches.
        speakers: K.
        out: folder of the training.
        options: epochs and seed.

    Raises:
        UserError: an encoder with several heads, more speakers than it has dimensions for, or `out` holds the training
            on other recordings.
    """
    if encoder.config.experts != 1:
        raise UserError(
            f"{source}: has {encoder.config.experts} experts, expected an encoder with one head for --adapt"
        )
    table = write_segments(out / "stretches.csv", _absolute(heard))
    batch_size = min(_BATCH_SIZE, len(heard.all))
    epochs = options.adapt_epochs
    if epochs is None:
        epochs = max(1, min(_EPOCHS, _STEPS // (len(heard.all) // batch_size)))
    config = ContrastiveTaskConfig(
        model=adapted_config(encoder.config, speakers),
        loss="mice",
        objective=ContrastiveObjectiveConfig(start_from_clusters=True, queue=512),
        data=StretchDataConfig(
            train=str(table),
            batch_size=batch_size,
            min_seconds=0.25,
            views=ViewConfig(_CROP_SECONDS),
        ),
        trainer=TrainerConfig(
            max_epochs=epochs,
            optimizer="sgd",
            learning_rate=_LEARNING_RATE,
            weight_decay=1e-4,
            decay_share=1.0,
            gradient_clip_norm=5.0,
            accelerator="cpu",
            seed=options.seed,
            checkpoint_every_steps=200,
        ),
        init_from=str(source),
    )
    from sepkit.studies.clustering import task as _task  # noqa: F401
    from sepkit.training.run import train

    return train(config, out)


def adapted_config(config: SpeakerEncoderConfig, speakers: int) -> SpeakerEncoderConfig:
    """Return the configuration of MiCE on the trunk of an encoder.

    Args:
        config: of the encoder, which has one head.
        speakers: K, the number of experts.
    """
    return replace(config, experts=speakers, gate="fixed", projected=0)


def _absolute(heard: Heard) -> list[Segment]:
    """Return the stretches as instances: a turn that was cut is one for each part."""
    return [
        Segment(str(source.paths[stretch.track]), stretch.start_seconds, stretch.duration_seconds)
        for source, stretch in heard.all
    ]
