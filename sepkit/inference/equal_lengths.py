"""Files of equal length and rate go through the model together, where that is faster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.options import Speakers
from sepkit.inference.reports import is_out_of_memory
from sepkit.inference.separated import Separated
from sepkit.inference.separator import Separator

FilePair = tuple[Path, Path]
"""Path of a recording, and of its outputs below their folder, without ending."""


def group_files(separator: Separator, files: Iterable[FilePair]) -> Iterator[list[FilePair]]:
    """Yield files of equal length and rate together, as many as go through the model at once.

    Long recordings are yielded alone, as are files that cannot be read: separating them says why.

    Args:
        separator: with the model.
        files: in any order.
    """
    open_groups: dict[tuple[int, int], list[FilePair]] = {}
    for pair in files:
        try:
            header = audio.info(pair[0])
        except (UserError, OSError):
            header = None
        if header is None or separator.is_long(header.num_samples, header.sample_rate):
            yield [pair]
            continue
        key = header.num_samples, header.sample_rate
        group = open_groups.setdefault(key, [])
        group.append(pair)
        if len(group) >= separator.batch_size(header.duration_seconds):
            yield open_groups.pop(key)
    yield from open_groups.values()


@dataclass(frozen=True)
class SeparatedAhead:
    """A recording that was separated together with others.

    Args:
        identity: of the file before it was read, see `sepkit.inference.outputs.file_identity`.
        waveform: (T,) of the recording.
        separated: its separation.
    """

    identity: dict[str, Any]
    waveform: np.ndarray
    separated: Separated


def separate_together(
    separator: Separator,
    identities: Mapping[Path, dict[str, Any]],
    channel: int | None,
    speakers: Speakers,
) -> dict[Path, SeparatedAhead]:
    """Return the separations of files that are equally long; none where one is at fault, for each alone will tell.

    Args:
        separator: with the model.
        identities: of the files, by path, from before they are read.
        channel: from 0; None: the mean of all.
        speakers: see `Separator.separate`.
    """
    read: list[tuple[Path, np.ndarray]] = []
    rate = 0
    for path in identities:
        try:
            rate = audio.info(path).sample_rate
            read.append((path, audio.read(path, channel=channel)))
        except (UserError, OSError):
            continue
    if len({len(waveform) for _, waveform in read}) != 1:
        return {}
    try:
        found = separator.separate_equal([waveform for _, waveform in read], rate, speakers=speakers)
    except (UserError, RuntimeError, MemoryError) as error:
        if not isinstance(error, UserError) and not is_out_of_memory(error):
            raise
        return {}
    return {
        path: SeparatedAhead(identities[path], waveform, separated)
        for (path, waveform), separated in zip(read, found, strict=True)
    }
