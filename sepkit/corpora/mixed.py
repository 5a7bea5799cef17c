"""A corpus that is already mixed, for evaluation: mixtures with one reference for each speaker.

What it is: mix/, s1/, s2/ ... as in WSJ0-mix, WHAM, LibriMix and most new test sets, or one of the other layouts in
`sepkit.corpora._mixed_layouts`.
Traps: in folders, files are paired by their path below the folder, without the ending. A file without a partner, or
whose partner has another rate or length, is left out and listed. Speakers are unknown, so the manifest is useless for
dynamic mixing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from sepkit.corpora._mixed_layouts import Row, find_rows
from sepkit.corpora._mixtures import manifest_path
from sepkit.corpora._recordings import report_skipped
from sepkit.corpora.options import MixedOptions
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, write_manifest
from sepkit.errors import UserError
from sepkit.files import check_writable


def prepare_mixed(options: MixedOptions) -> Path:
    """Write `out/test.jsonl`, the recorded mixtures with their references at the rate that most have; return its
    path."""
    out = Path(options.out)
    check_writable(out)
    rows, left_out = find_rows(options)
    entries: list[MixtureEntry] = []
    for row in rows:
        try:
            entries.append(_entry(row, out))
        except UserError as error:
            left_out[str(row.mixture)] = str(error)
    failure = "" if entries else f"{options.folder or options.mixture}: none of its mixtures can be used"
    report_skipped(out, left_out, failure)
    rates = Counter(entry.sample_rate for entry in entries)
    sample_rate = max(rates, key=lambda rate: (rates[rate], rate))
    entries = [entry if entry.sample_rate == sample_rate else _at_rate(entry, sample_rate) for entry in entries]
    hours = sum(entry.duration_seconds for entry in entries) / 3600
    sizes = " or ".join(map(str, sorted({len(entry.sources) for entry in entries})))
    print(f"test.jsonl: {len(entries)} mixtures of {sizes} at {sample_rate} Hz, {hours:.2f} h")
    return write_manifest(out / "test.jsonl", entries)


def _entry(row: Row, out: Path) -> MixtureEntry:
    header = audio.info(row.mixture)
    partners = [*row.sources, *([row.noise] if row.noise else [])]
    for path in partners:
        if path.resolve() == row.mixture.resolve():
            raise UserError(f"{path}: is the mixture and a reference of itself; leave out the row")
        other = audio.info(path)
        if (other.sample_rate, other.num_samples) != (header.sample_rate, header.num_samples):
            raise UserError(
                f"{path}: {other.num_samples} samples at {other.sample_rate} Hz, but its mixture {row.mixture} has "
                f"{header.num_samples} at {header.sample_rate} Hz"
            )
    return MixtureEntry(
        id=row.id,
        sample_rate=header.sample_rate,
        num_samples=header.num_samples,
        mixture=manifest_path(row.mixture, out),
        corpus="mixed",
        task="sep_clean" if row.noise is None else "sep_noisy",
        sources=[SourceEntry(manifest_path(path, out)) for path in row.sources],
        noise=None if row.noise is None else NoiseEntry(manifest_path(row.noise, out)),
    )


def _at_rate(entry: MixtureEntry, sample_rate: int) -> MixtureEntry:
    entry.num_samples = audio.resampled_length(entry.num_samples, entry.sample_rate, sample_rate, entry.resampler)
    entry.sample_rate = sample_rate
    return entry
