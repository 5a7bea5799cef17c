"""The stretches of speech in all inputs of `sepkit cluster`, and what it does with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from sepkit.errors import UserError
from sepkit.inference.inputs import find_recordings
from sepkit.inference.reports import failure_reason
from sepkit.inference.stretches import (
    SHORTEST_SECONDS,
    Source,
    Stretch,
    blend_turns,
    find_stretches,
    group_estimates,
    waveforms_of,
)
from sepkit.studies.clustering.measures import Rule


@dataclass
class Heard:
    """The stretches of all recordings, and what was left out.

    Args:
        sources: recordings with at least one stretch.
        stretches: of each of them, in order of time.
        short: (relative path, stretch) of stretches too short to use.
        skipped: path -> why a recording was left out.
    """

    sources: list[Source] = field(default_factory=list)
    stretches: list[list[Stretch]] = field(default_factory=list)
    short: list[tuple[str, Stretch]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def waveforms(self, sample_rate: int) -> Iterator[np.ndarray]:
        """Yield the samples of all stretches, (T,) each.

        Args:
            sample_rate: Hz of the samples.
        """
        for source, own in zip(self.sources, self.stretches, strict=True):
            yield from waveforms_of(source, own, sample_rate)

    @property
    def all(self) -> list[tuple[Source, Stretch]]:
        """Every stretch, with the recording that it is of."""
        return [(source, s) for source, own in zip(self.sources, self.stretches, strict=True) for s in own]

    @property
    def separated(self) -> bool:
        """Whether estimates of a separated recording are among the inputs."""
        return any(len(source.paths) > 1 for source in self.sources)

    @property
    def seconds(self) -> np.ndarray:
        """(N,) lengths of the stretches."""
        return np.array([stretch.duration_seconds for _, stretch in self.all])

    def blend(self, values: np.ndarray) -> np.ndarray:
        """Return unit vectors of all stretches with their neighbors' added, see `blend_turns`.

        Args:
            values: (N, D) of the stretches.
        """
        rows = np.cumsum([len(own) for own in self.stretches])[:-1]
        parts = zip(np.split(values, rows), self.stretches, strict=True)
        return np.concatenate([blend_turns(part, own) for part, own in parts])


def hear(inputs: Sequence[str | Path], out: Path) -> Heard:
    """Return the stretches of all inputs; a recording that cannot be used is noted, and the rest goes on.

    Args:
        inputs: recordings, folders of them, or what `sepkit separate` wrote.
        out: folder of the outputs, which is no input.

    Raises:
        UserError: an input that does not exist, or nothing is heard anywhere.
    """
    heard = Heard()
    for source in group_estimates(find_recordings(inputs, out)):
        try:
            stretches, short = find_stretches(source)
        except UserError as error:
            heard.skipped[str(source.paths[0])] = failure_reason(error, source.paths[0])
            continue
        heard.short += [(source.relative[stretch.track], stretch) for stretch in short]
        if not stretches:
            heard.skipped[str(source.paths[0])] = (
                f"{source.paths[0]}: no speech of {SHORTEST_SECONDS} s or more is heard"
            )
            continue
        heard.sources.append(source)
        heard.stretches.append(stretches)
    if not heard.sources:
        reason = next(iter(heard.skipped.values()), "no recordings")
        raise UserError(f"no recording can be used; the first: {reason}")
    return heard


@dataclass(frozen=True)
class ClusterOptions:
    """What `cluster_recordings` does.

    Args:
        model: folder of an encoder, the name of one that ships, mean_mfcc or mean_log_mel; None: the default encoder.
        speakers: their number; auto: it is found.
        adapt: whether the encoder is adapted to these recordings first.
        adapt_epochs: length of the adaptation; None: 40, or fewer in long recordings, of about 2,000 steps.
        rule: what clusters come of; None: the one that the encoder's card names.
        seed: of k-means and of the adaptation.
    """

    model: str | None = None
    speakers: int | Literal["auto"] = "auto"
    adapt: bool = False
    adapt_epochs: int | None = None
    rule: Rule | None = None
    seed: int = 0
