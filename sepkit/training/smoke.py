"""`smoke`: does this configuration train, validate, save and resume? In seconds, on a small scale."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from sepkit.config import TrainConfig
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry, write_manifest
from sepkit.models import load_checkpoint
from sepkit.training.run import train

__all__ = ["smoke", "write_synthetic_set"]

STEPS = 2
MAX_BATCH_SIZE = 2
MAX_SEGMENT_SECONDS = 1.0


def smoke(config: TrainConfig) -> str:
    """A line that says what passed: two training steps, a validation, a save, a resume with the same again, and a load.

    Batches are cut to 2 mixtures of 1 s on one device; model, objective, optimiser and precision are the
    configuration's own. Without `data.train` a small set of tones is made. All is written to a temporary folder.

    Raises:
        UserError: the configuration cannot be trained with.
        RuntimeError: the saved model does not work.
    """
    with tempfile.TemporaryDirectory(prefix="sepkit-smoke-") as folder:
        small = _shrink(config, Path(folder))
        limit = STEPS * small.trainer.accumulate_batches
        train(small, Path(folder, "exp"), limit_batches=limit)
        again = replace(small, trainer=replace(small.trainer, max_epochs=2))
        model = load_checkpoint(train(again, Path(folder, "exp"), limit_batches=limit))
        with torch.no_grad():
            estimates = model(torch.randn(1, small.model.sample_rate)).estimates
        if estimates.shape != (1, small.model.hypotheses, small.model.sample_rate) or not estimates.isfinite().all():
            raise RuntimeError(f"the saved model gives estimates of shape {tuple(estimates.shape)}, or not finite ones")
    return f"passed: {STEPS} steps, a validation, a save, a resume and a load ({small.model.masker.name})"


def write_synthetic_set(folder: Path, *, sample_rate: int, sources: int, mixtures: int, seconds: float = 1.0) -> Path:
    """The manifest `train.jsonl` in `folder`, of mixtures of modulated tones; the same every time."""
    generator = np.random.default_rng(0)
    samples = round(seconds * sample_rate)
    time = np.arange(samples) / sample_rate
    entries = []
    for index in range(mixtures):
        parts = []
        for source in range(sources):
            carrier = np.sin(2 * np.pi * generator.uniform(100, sample_rate / 4) * time)
            envelope = 1 + np.sin(2 * np.pi * generator.uniform(1, 5) * time + generator.uniform(0, 6))
            waveform = 0.1 * envelope * (carrier + 0.1 * generator.standard_normal(samples))
            path = f"wav/{index}_{source}.wav"
            audio.write(folder / path, waveform.astype(np.float32), sample_rate)
            parts.append(SourceEntry(path, speaker=f"voice{index}-{source}", sex="FM"[index % 2]))
        entries.append(MixtureEntry(id=f"mixture{index}", sample_rate=sample_rate, num_samples=samples, sources=parts))
    manifest = folder / "train.jsonl"
    write_manifest(manifest, entries)
    return manifest


def _shrink(config: TrainConfig, folder: Path) -> TrainConfig:
    data = config.data
    batch_size = min(data.batch_size, MAX_BATCH_SIZE)
    if data.train is None:
        mixtures = batch_size * STEPS * config.trainer.accumulate_batches
        sources = min(2, config.model.hypotheses)
        manifest = write_synthetic_set(folder, sample_rate=config.model.sample_rate, sources=sources, mixtures=mixtures)
        data = replace(data, train=str(manifest), dev=str(manifest))
    data = replace(
        data, batch_size=batch_size, segment_seconds=min(data.segment_seconds, MAX_SEGMENT_SECONDS), workers=0
    )
    trainer = replace(config.trainer, max_epochs=1, max_minutes=None, devices=1, num_nodes=1, sync_batchnorm=False)
    return replace(config, data=data, trainer=trainer)
