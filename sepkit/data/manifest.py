"""Manifests list mixtures, one JSON object per line.

A manifest describes mixtures and does not hold them: `mixture: null` means that they are mixed on the fly from the
sources. Paths are absolute or relative to the manifest's folder.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from sepkit.data.audio import AUDIO_SUFFIXES, RESAMPLERS
from sepkit.errors import UserError, one_line, shown
from sepkit.files import parse_json, read_text, write_text
from sepkit.limits import FILE_SAMPLES, GAIN, ID_BYTES, MIXTURE_SAMPLES, SAMPLE_RATES, TEXT_CHARACTERS

MODES = ("min", "max")


@dataclass
class SourceEntry:
    """One speaker's part of a mixture. Positions are in samples at the mixture's rate, after resampling.

    Args:
        path: Recording of the speaker, absolute or relative to the manifest's folder.
        speaker: Identifier of the speaker; "": unknown.
        sex: Sex of the speaker, such as "F" or "M"; None: unknown.
        start: First sample in the file.
        gain: Factor on the samples.
        offset: First sample of the recording in the mixture.
        num_samples: Number of samples in the file from `start` on; None: to the end of the file.
        channel: Channel of the file, from 0; None: the mean of all.
        extra: Further fields of the JSON object, kept as they are.
    """

    path: str
    speaker: str = ""
    sex: str | None = None
    start: int = 0
    gain: float = 1.0
    offset: int = 0
    num_samples: int | None = None
    channel: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class NoiseEntry:
    """The noise of a mixture. Positions are in samples at the mixture's rate, after resampling.

    Args:
        path: Recording of the noise, absolute or relative to the manifest's folder.
        start: First sample in the file.
        gain: Factor on the samples.
        extend: Rule for noise shorter than the mixture (a name in `sepkit.data.mixing.EXTENSIONS`); None: it ends.
        file_samples: Length to which the noise is cut or extended before resampling, in samples from the file's
            beginning at its own rate; None: the whole file, and with `extend` as long as the longest source.
        channel: Channel of the file, from 0; None: the mean of all.
        extra: Further fields of the JSON object, kept as they are.
    """

    path: str
    start: int = 0
    gain: float = 1.0
    extend: str | None = None
    file_samples: int | None = None
    channel: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class MixtureEntry:
    """One line of a manifest: sum_i gain_i * source_i (+ gain * noise), or a recorded mixture with its references.

    Args:
        id: Identifier of the mixture, unique in the manifest.
        sample_rate: Sampling rate of the mixture, Hz.
        num_samples: Length of the mixture at `sample_rate`, samples.
        sources: Speakers of the mixture; empty: a recorded mixture without references.
        mode: "min" (cut to the shortest source) or "max" (as long as the longest).
        mixture: Recording of the mixture; None: mix on the fly.
        resampler: "soxr_hq" or "scipy_poly", for files stored at another rate.
        corpus: Name of the corpus, for results by corpus.
        task: Kind of mixture, such as "sep_clean" or "sep_noisy".
        noise: Noise of the mixture; None: no noise.
        extra: Further fields of the JSON object, kept as they are.
        folder: Base of relative paths, set by `read_manifest`; not part of the line.

    >>> entry = MixtureEntry("a", 8000, 32000, [SourceEntry("alice.wav"), SourceEntry("bob.wav")])
    >>> entry.duration_seconds
    4.0
    """

    id: str
    sample_rate: int
    num_samples: int
    sources: list[SourceEntry] = field(default_factory=list)
    mode: str = "min"
    mixture: str | None = None
    resampler: str = "soxr_hq"
    corpus: str = ""
    task: str = "sep_clean"
    noise: NoiseEntry | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = field(default=None, compare=False, repr=False)

    def resolve(self, path: str) -> Path:
        """Return the path of a file of this entry.

        Args:
            path: Absolute path, or path relative to the manifest's folder.
        """
        return Path(self.folder or "", path)

    @property
    def duration_seconds(self) -> float:
        """Length of the mixture in seconds."""
        return self.num_samples / self.sample_rate


class Manifest(Sequence[MixtureEntry]):
    """A sequence of entries, with the path they were read from."""

    def __init__(self, path: str | os.PathLike[str], entries: Iterable[MixtureEntry]) -> None:
        self.path = Path(path)
        self.entries = list(entries)
        for entry in self.entries:
            entry.folder = self.path.parent

    @property
    def max_sources(self) -> int:
        """The largest number of sources in an entry."""
        return max((len(entry.sources) for entry in self.entries), default=0)

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> MixtureEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[MixtureEntry]: ...
    def __getitem__(self, index: int | slice) -> MixtureEntry | list[MixtureEntry]:
        return self.entries[index]


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return the mixtures of a manifest. Blank lines are skipped; recordings need not exist.

    Args:
        path: Path of the manifest, one JSON object per line.

    Returns:
        A sequence of `MixtureEntry`, with `path` and `max_sources`, the largest number of sources in a mixture.

    Raises:
        UserError: no such file, a line that is not a mixture (with its number and field), two mixtures with one id, or
            no mixtures.
    """
    path = Path(path)
    if path.is_dir() or (path.suffix.lower() in AUDIO_SUFFIXES and path.is_file()):
        raise UserError(
            f"{path}: found a {'folder' if path.is_dir() else 'recording'}, expected a manifest such as test.jsonl; "
            "`sepkit prepare mixed` makes one from a corpus that is already mixed, `sepkit prepare folder` from "
            "recordings of single speakers"
        )
    text = read_text(path, "a manifest, one JSON object per line")
    entries: list[MixtureEntry] = []
    first_seen: dict[str, int] = {}
    # splitlines() would also split at characters that JSON text may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        entry = entry_from_line(line, f"{path}:{number}")
        if entry.id in first_seen:
            raise UserError(
                f"{path}:{number}: id {shown(entry.id)} appears in line {first_seen[entry.id]} too; give each its own "
                "id"
            )
        first_seen[entry.id] = number
        entries.append(entry)
    if not entries:
        raise UserError(f"{path}: contains no mixtures; expected one JSON object per line")
    return Manifest(path, entries)


def write_manifest(path: str | os.PathLike[str], entries: Iterable[MixtureEntry]) -> Path:
    """Write a manifest atomically and return its path. The same entries always give the same bytes.

    Args:
        path: Path of the manifest; the folder is made if it is missing.
        entries: Mixtures; their paths are relative to the manifest's folder, or absolute.

    Raises:
        UserError: Two mixtures with one id, or a field with a value that `read_manifest` would refuse.
    """
    path = Path(path)
    lines: list[str] = []
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise UserError(f"{path}: id {shown(entry.id)} appears twice; give each mixture its own id")
        seen.add(entry.id)
        lines.append(entry_to_line(entry, f"{path}: mixture {shown(entry.id)}"))
    write_text(path, "".join(f"{line}\n" for line in lines))
    return path


def entry_to_line(entry: MixtureEntry, where: str = "manifest") -> str:
    """Return the line of an entry, without the line break.

    Args:
        entry: The mixture.
        where: Name of the place for messages.

    Raises:
        UserError: A field with a value that `read_manifest` would refuse.
    """
    plain = _to_plain(entry)
    _parse_entry(plain, where)
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def entry_from_line(line: str, where: str = "manifest") -> MixtureEntry:
    """Return the entry in a line of a manifest.

    Args:
        line: JSON text.
        where: Name of the place for messages.

    Raises:
        UserError: Text that is not JSON, a field that is missing, or a value that cannot be meant.
    """
    try:
        plain = parse_json(line)
    except ValueError as error:
        # Beside what is not JSON: numbers of more digits than Python converts, and lists in lists without end.
        raise UserError(f"{where}: not JSON ({one_line(str(error))}); expected one JSON object per line") from error
    return _parse_entry(plain, where)


def _to_plain(part: MixtureEntry | SourceEntry | NoiseEntry) -> dict[str, Any]:
    plain = {name: getattr(part, name) for name in _FIELDS[type(part)]}
    if isinstance(part, MixtureEntry):
        plain["sources"] = [_to_plain(source) for source in part.sources]
        plain["noise"] = None if part.noise is None else _to_plain(part.noise)
    plain = {name: value for name, value in plain.items() if value is not None or name not in _OMITTED_IF_NONE}
    return plain | dict(sorted(part.extra.items()))


def _parse_entry(plain: Any, where: str) -> MixtureEntry:
    fields = _checked(MixtureEntry, plain, where)
    fields["sources"] = [
        SourceEntry(**_checked(SourceEntry, source, f"{where}: sources[{index}]"))
        for index, source in enumerate(fields["sources"])
    ]
    if fields.get("noise") is not None:
        fields["noise"] = NoiseEntry(**_checked(NoiseEntry, fields["noise"], f"{where}: noise"))
    entry = MixtureEntry(**fields)
    if entry.mixture is None and not entry.sources:
        raise UserError(f"{where}: contains neither mixture nor sources; expected a recorded mixture or sources to mix")
    return entry


def _checked(kind: type, plain: Any, where: str) -> dict[str, Any]:
    """Return the fields of a JSON object that an entry of this kind has, the others as "extra"."""
    if not isinstance(plain, dict):
        raise UserError(f"{where}: found {shown(plain)}, expected a JSON object")
    rest, found = dict(plain), {}
    for name, (accepts, expected) in _FIELDS[kind].items():
        if name in rest:
            found[name] = value = rest.pop(name)
            if not accepts(value):
                raise UserError(f"{where}: {name} is {shown(value)}, expected {expected}")
        elif name in _REQUIRED[kind]:
            raise UserError(f"{where}: missing field {name!r}")
    return found | {"extra": rest}


_Check = tuple[Callable[[Any], bool], str]
"""Whether a value is accepted, and a description of accepted values."""


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    """Whether a value is text that can be a part of a path, whose bytes may be no UTF-8."""
    if not isinstance(value, str) or len(value) > TEXT_CHARACTERS or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _is_identifier(value: Any) -> bool:
    # Half of a surrogate pair is what JSON can write and no table of UTF-8 can hold.
    return _is_text(value) and value.isprintable() and 0 < len(value.encode("utf-8", "replace")) <= ID_BYTES


def _whole(least: int, most: int, expected: str) -> _Check:
    return (lambda v: _is_int(v) and least <= v <= most, expected)


def _optional(check: _Check) -> _Check:
    return (lambda v: v is None or check[0](v), f"{check[1]}, or null")


def _one_of(words: Sequence[str]) -> _Check:
    return (lambda v: isinstance(v, str) and v in words, f"one of {', '.join(words)}")


_identifier: _Check = (_is_identifier, f"printable text of 1 to {ID_BYTES} bytes of UTF-8")
_path: _Check = (lambda v: _is_text(v) and v != "", f"text of 1 to {TEXT_CHARACTERS} characters without NUL")
_text: _Check = (_is_text, f"text of at most {TEXT_CHARACTERS} characters without NUL")
_rate = _whole(*SAMPLE_RATES, f"{SAMPLE_RATES[0]} to {SAMPLE_RATES[1]} Hz, a whole number")
_length = _whole(1, MIXTURE_SAMPLES, f"a whole number above 0, up to {MIXTURE_SAMPLES}")
_positive = _whole(1, FILE_SAMPLES, f"a whole number above 0, up to {FILE_SAMPLES}")
_not_negative = _whole(0, FILE_SAMPLES, f"a whole number from 0 to {FILE_SAMPLES}")
_gain: _Check = (
    lambda v: (_is_int(v) or isinstance(v, float)) and -GAIN <= v <= GAIN,
    f"a finite number, at most {GAIN:.0e}",
)
_list: _Check = (lambda v: isinstance(v, list), "a list")
_anything: _Check = (lambda v: True, "anything")

_FIELDS: dict[type, dict[str, _Check]] = {
    MixtureEntry: {
        "id": _identifier, "sample_rate": _rate, "num_samples": _length, "mode": _one_of(MODES),
        "mixture": _optional(_path), "resampler": _one_of(RESAMPLERS), "corpus": _text, "task": _text,
        "sources": _list, "noise": _anything,
    },
    SourceEntry: {
        "path": _path, "speaker": _text, "sex": _optional(_text), "start": _not_negative, "gain": _gain,
        "offset": _not_negative, "num_samples": _optional(_positive), "channel": _optional(_not_negative),
    },
    NoiseEntry: {
        "path": _path, "start": _not_negative, "gain": _gain, "extend": _optional(_path),
        "file_samples": _optional(_positive), "channel": _optional(_not_negative),
    },
}  # fmt: skip
"""Accepted values of each field, in the order in which fields are written."""
_REQUIRED: dict[type, tuple[str, ...]] = {
    MixtureEntry: ("id", "sample_rate", "num_samples", "sources"), SourceEntry: ("path",), NoiseEntry: ("path",),
}  # fmt: skip
_OMITTED_IF_NONE = ("num_samples", "file_samples", "channel")
