"""Training and validation examples: an item depends on (seed, epoch, index) alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from sepkit.config import DynamicMixingConfig
from sepkit.data.manifest import Manifest, read_manifest
from sepkit.data.mixing import Mixed, mix_entry
from sepkit.data.resampling import resample
from sepkit.errors import UserError
from sepkit.types import Batch

if TYPE_CHECKING:
    from sepkit.data.dynamic_mixing import DynamicMixer

Key = tuple[int, int]
"""(epoch, index)"""


@dataclass
class Example:
    """One mixture with its references.

    Args:
        mixture: (T,) waveform.
        sources: (m, T) waveforms; rows of inactive sources hold zeros.
        active: (m,) bool: False where the utterance has fewer than m sources or the source is digital silence.
    """

    id: str
    mixture: Tensor
    sources: Tensor
    active: Tensor


class MixtureDataset(Dataset[Example]):
    """The mixtures of a manifest, cut to segments; `dataset[epoch, index]` is the same in every order and process.

    `dataset[index]` is the item of epoch 0. Only the segment is read from the files.

    Args:
        manifest: Manifest, or its path.
        segment_seconds: Length of segments; shorter mixtures stay as they are. None: whole mixtures.
        min_seconds: Length below which mixtures are dropped, seconds.
        seed: Seed of random segments and of dynamic mixing.
        random_crop: Whether segments start anywhere; False: at the beginning.
        dynamic_mixing: Settings of dynamic mixing; if enabled, the manifest's recordings are mixed anew.
        mixtures_per_epoch: Length of the dataset under dynamic mixing; None: that of the manifest.
        speeds: Speeds of playing, one drawn for each source of a manifest's mixture; empty: all are played as they are.
        sample_rate: Expected sampling rate of the mixtures, Hz; None: that of the manifest.

    Raises:
        UserError: a manifest that cannot be read, mixtures of several rates or of another rate than `sample_rate`, or
            no mixture of `min_seconds`.
    """

    def __init__(
        self,
        manifest: str | os.PathLike[str] | Manifest,
        *,
        segment_seconds: float | None = None,
        min_seconds: float = 0.0,
        seed: int = 0,
        random_crop: bool = True,
        dynamic_mixing: DynamicMixingConfig | None = None,
        mixtures_per_epoch: int | None = None,
        speeds: Sequence[float] = (),
        sample_rate: int | None = None,
    ) -> None:
        manifest = manifest if isinstance(manifest, Manifest) else read_manifest(manifest)
        self.manifest = _long_enough(manifest, min_seconds)
        self.sample_rate = _only_sample_rate(self.manifest, sample_rate)
        self.num_sources = self.manifest.max_sources
        self.segment_samples = None if segment_seconds is None else max(1, round(segment_seconds * self.sample_rate))
        self.seed = seed
        self.random_crop = random_crop
        self.speeds = speeds
        self._mixer: DynamicMixer | None = None
        self._length = len(self.manifest)
        if dynamic_mixing is not None and dynamic_mixing.enabled:
            from sepkit.data.dynamic_mixing import DynamicMixer

            self._mixer = DynamicMixer(self.manifest, dynamic_mixing, self.segment_samples)
            self._length = mixtures_per_epoch or self._length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: int | Key) -> Example:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        if not 0 <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        generator = np.random.default_rng([self.seed, epoch, index])
        if self._mixer is not None:
            return self._example(f"dynamic-{epoch}-{index}", self._mixer.mix(generator))
        entry = self.manifest[index]
        start, count = 0, entry.num_samples
        if self.segment_samples is not None and count > self.segment_samples:
            spare = count - self.segment_samples
            start = int(generator.integers(spare + 1)) if self.random_crop else 0
            count = self.segment_samples
        mixed = mix_entry(entry, start, count)
        return self._example(entry.id, self._at_drawn_speeds(mixed, generator) if self.speeds else mixed)

    def _at_drawn_speeds(self, mixed: Mixed, generator: np.random.Generator) -> Mixed:
        """Return the mixture of its sources, each at a drawn speed, as long as the shortest; noise stays as it is."""
        rates = [round(1000 / speed) for speed in generator.choice(self.speeds, len(mixed.sources))]
        played = [resample(row, 1000, rate) for row, rate in zip(mixed.sources, rates, strict=True)]
        length = min(len(mixed.mixture), *map(len, played))
        noise = (mixed.mixture - mixed.sources.sum(0))[:length]
        sources = np.stack([row[:length] for row in played])
        return Mixed(sources.sum(0) + noise, sources)

    def _example(self, name: str, mixed: Mixed) -> Example:
        sources = np.zeros((self.num_sources, len(mixed.mixture)), dtype=np.float32)
        sources[: len(mixed.sources)] = mixed.sources
        return Example(
            id=name,
            mixture=torch.from_numpy(mixed.mixture),
            sources=torch.from_numpy(sources),
            active=torch.from_numpy(sources.any(axis=1)),
        )


def collate(examples: Sequence[Example]) -> Batch:
    """Return a batch of examples, padded with zeros to the longest, and with inactive sources to the largest number.

    Args:
        examples: Items of a `MixtureDataset`.
    """
    length = max(len(example.mixture) for example in examples)
    num_sources = max(len(example.sources) for example in examples)
    mixture = torch.zeros(len(examples), length)
    sources = torch.zeros(len(examples), num_sources, length)
    active = torch.zeros(len(examples), num_sources, dtype=torch.bool)
    for row, example in enumerate(examples):
        mixture[row, : len(example.mixture)] = example.mixture
        sources[row, : len(example.sources), : len(example.mixture)] = example.sources
        active[row, : len(example.active)] = example.active
    lengths = torch.tensor([len(example.mixture) for example in examples])
    return Batch(mixture, sources, active, lengths, [example.id for example in examples])


@dataclass(eq=False, kw_only=True)
class EpochSampler(Sampler[list[Key]]):
    """A batch sampler: lists of (epoch, index), this rank's share of each global batch.

    An epoch is one order of all items, drawn from (seed, epoch) and cut into global batches of `batch_size * world`
    items; rank r takes the items r, r + world, ... of each. So 2 ranks with batch size 2 see the same as 1 rank with
    batch size 4. Every rank makes the same number of batches: if the last global batch has fewer items than there are
    ranks, the ranks without an item repeat its first one.

    To continue within an epoch, set the epoch and `batches_done`: the next iteration starts there, later ones at the
    beginning. `len` is always that of a whole epoch.
    """

    num_items: int = field(kw_only=False)
    seed: int = 0
    shuffle: bool = True
    rank: int = 0
    world: int = 1
    batch_size: int = 1
    drop_last: bool = False
    epoch: int = field(default=0, init=False)
    batches_done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world or self.batch_size < 1 or self.num_items < 0:
            raise ValueError(f"rank {self.rank} of {self.world}, batch size {self.batch_size}, {self.num_items} items")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0 on, of the next iteration; a new epoch starts at its first batch."""
        if epoch != self.epoch:
            self.epoch, self.batches_done = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Return where the next iteration starts."""
        return {"epoch": self.epoch, "batches_done": self.batches_done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next iteration start where a saved state says."""
        self.epoch, self.batches_done = state["epoch"], state["batches_done"]

    def __len__(self) -> int:
        size = self.batch_size * self.world
        return self.num_items // size if self.drop_last else -(-self.num_items // size)

    def __iter__(self) -> Iterator[list[Key]]:
        epoch, first = self.epoch, self.batches_done
        self.batches_done = 0
        drawn = np.random.default_rng([self.seed, epoch]).permutation
        order = drawn(self.num_items) if self.shuffle else np.arange(self.num_items)
        size = self.batch_size * self.world
        for batch in range(first, len(self)):
            everyone = order[batch * size : (batch + 1) * size]
            mine = everyone[self.rank :: self.world]
            yield [(epoch, int(index)) for index in (mine if len(mine) else everyone[:1])]


def _long_enough(manifest: Manifest, min_seconds: float) -> Manifest:
    kept = [entry for entry in manifest if entry.duration_seconds >= min_seconds]
    if len(kept) == len(manifest):
        return manifest
    if not kept:
        longest = max(entry.duration_seconds for entry in manifest)
        raise UserError(
            f"{manifest.path}: the longest mixture has {longest:.2f} s, but data.min_seconds is {min_seconds:g}; "
            "lower data.min_seconds"
        )
    print(
        f"{manifest.path}: left out {len(manifest) - len(kept)} of {len(manifest)} mixtures, which are shorter than "
        f"data.min_seconds ({min_seconds:g} s)",
        file=sys.stderr,
    )
    return Manifest(manifest.path, kept)


def _only_sample_rate(manifest: Manifest, expected: int | None) -> int:
    rates = sorted({entry.sample_rate for entry in manifest})
    if len(rates) > 1:
        raise UserError(f"{manifest.path}: mixtures at {' and '.join(map(str, rates))} Hz; expected one sample_rate")
    if expected is not None and rates[0] != expected:
        raise UserError(
            f"{manifest.path}: sample_rate is {rates[0]} Hz, but the model works at {expected} Hz; "
            f"prepare the data at {expected} Hz or set model.sample_rate"
        )
    return rates[0]
