"""Reports on a list of recordings: one line, a list of failures, and a summary that ranks share."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sepkit.errors import UserError, counted, one_line
from sepkit.files import file_text, parse_json, write_json, write_text
from sepkit.inference.runners.base import is_out_of_memory
from sepkit.owned import FOREIGN, check
from sepkit.version import __version__

FAILED = "failed.jsonl"


@dataclass
class FilesReport:
    """Results of a list of recordings; printing it gives one line.

    Args:
        out: Folder of the outputs.
        separated: Number of recordings separated by this call.
        already_done: Number of recordings separated by an earlier call in the same way.
        failed: Reasons by path; also written to the list of failures.
        audio_seconds: Total length of the recordings separated by this call, seconds.
        wall_seconds: Duration of the call, seconds.
        list_name: Name of the list of failures, in `out`.
        summaries: Lines about outputs separated by this call (number of speakers, predicted SI-SDR), by output.
        warnings: Limits of all outputs, such as a missing high band, and doubtful enrollments.
    """

    out: Path
    separated: int = 0
    already_done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    audio_seconds: float = 0.0
    wall_seconds: float = 0.0
    list_name: str = FAILED
    summaries: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work per second of sound, reading and writing included; None if nothing was separated."""
        return self.wall_seconds / self.audio_seconds if self.audio_seconds else None

    def __str__(self) -> str:
        parts = [f"{counted(self.already_done, 'file')} already separated"] * (self.already_done > 0)
        if self.separated or not (parts or self.failed):
            files = counted(self.separated, "file")
            parts.insert(0, f"{files}, {_brief(self.audio_seconds)} of audio in {_brief(self.wall_seconds)}")
        if self.failed:
            parts.append(f"{counted(len(self.failed), 'file')} failed (listed in {self.out / self.list_name})")
        return "; ".join(parts)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for a JSON file."""
        return {
            "n_recordings": self.separated + self.already_done + len(self.failed),
            "n_separated": self.separated,
            "n_already_done": self.already_done,
            "n_failed": len(self.failed),
            "failed": [{"input": name, "reason": reason} for name, reason in self.failed.items()],
            "audio_seconds": self.audio_seconds,
            "wall_seconds": self.wall_seconds,
            "real_time_factor": self.real_time_factor,
            "version": __version__,
        }


def _brief(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def failure_reason(error: Exception, path: Path) -> str:
    """Return why a recording could not be separated, in one line that names it."""
    # Names of files may hold line breaks.
    where = one_line(str(path))
    if is_out_of_memory(error):
        return f"{where}: too long for the device's memory; cut it into shorter files, or use another device"
    text = one_line(str(error))
    return text if where in text else f"{where}: {text}"


def check_failures(path: Path) -> None:
    """Raise UserError if a list of failures would be written over a file that is none."""
    _check_own(path, lambda text: all(parse_json(line).keys() == {"input", "reason"} for line in text.splitlines()))


def check_summary(path: Path) -> None:
    """Raise UserError if a summary would be written over a file that is none, or over an input."""
    check(path)
    _check_own(path, lambda text: "n_already_done" in dict(parse_json(text)))


def _check_own(path: Path, is_own: Callable[[str], bool]) -> None:
    try:
        own = not os.path.lexists(path) or is_own(file_text(path))
    except (OSError, ValueError, AttributeError, TypeError):
        own = False
    if not own:
        raise UserError(FOREIGN.format(path))


def write_failures(path: Path, failed: dict[str, str]) -> None:
    """Write the failures (name -> reason) as JSON lines, or remove the list of an earlier call if there are none."""
    if not failed:
        path.unlink(missing_ok=True)
        return
    lines = [json.dumps({"input": name, "reason": reason}, ensure_ascii=False) for name, reason in failed.items()]
    write_text(path, "\n".join(lines) + "\n")


def merge_summaries(path: Path, world_size: int) -> None:
    """Write the sum of the ranks' summaries, PATH.rank0 ..., once all of them exist.

    The rank that ends last finds all. Those of an earlier call with another number of ranks do not count.
    """
    paths = [path.with_name(f"{path.name}.rank{rank}") for rank in range(world_size)]
    try:
        parts = [parse_json(file_text(own)) for own in paths]
    except (OSError, ValueError):
        return
    if any(part["world_size"] != world_size for part in parts):
        return
    counts = ("n_recordings", "n_separated", "n_already_done", "n_failed", "audio_seconds")
    total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in counts}
    # Ranks work side by side, so the slowest gives the duration.
    seconds = max(part["wall_seconds"] for part in parts)
    write_json(
        path,
        total
        | {
            "failed": [failure for part in parts for failure in part["failed"]],
            "wall_seconds": seconds,
            "real_time_factor": seconds / total["audio_seconds"] if total["audio_seconds"] else None,
            "world_size": world_size,
            "version": __version__,
        },
    )
