"""Write manifests and their recordings as tar shards (`sepkit.data.shards`), several at a time."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sepkit.corpora._recordings import check_writable, write_skipped
from sepkit.corpora.options import ShardsOptions
from sepkit.data.manifest import read_manifest, write_manifest
from sepkit.data.shards import index_path, plan_shards, read_shard, write_shard
from sepkit.errors import UserError
from sepkit.parallel import Failed, for_each


def shard_folder(folder: Path, processes: int | None = None) -> Path:
    """Write shards of all manifests in a folder into its folder `shards`; return that folder.

    Args:
        folder: of the manifests.
        processes: how many write at a time; None: as many as the processor has cores.
    """
    manifests = sorted(folder.glob("*.jsonl"))
    return write_shards(ShardsOptions(manifest=manifests, out=folder / "shards", processes=processes))


def write_shards(options: ShardsOptions) -> Path:
    """Write each manifest's shards, and the manifest of the same name that reads them; return their folder.

    Shards that exist and hold the same mixtures are kept. Unreadable mixtures are listed in `skipped.tsv`.

    Args:
        options: the manifests, and the size of shards.

    Raises:
        UserError: a manifest that cannot be read, two of one name, nothing that can be sharded, or a full disk.
    """
    out, paths, shard_megabytes = Path(options.out), [Path(path) for path in options.manifest], options.shard_megabytes
    if not shard_megabytes > 0:
        raise UserError(f"--shard-megabytes {shard_megabytes}: expected more than 0")
    for position, path in enumerate(paths):
        if path.parent.resolve() == out.resolve():
            raise UserError(f"--out {out}: is the folder of {path.name}, which its sharded form would replace")
        if path.stem in {other.stem for other in paths[:position]}:
            raise UserError(f"{path}: two manifests are called {path.stem}; shard them into different folders")
    read = [read_manifest(path) for path in paths]
    check_writable(out)
    skipped: dict[str, str] = {}
    for manifest in read:
        shards = plan_shards(manifest, out, shard_megabytes)
        for shard, result in for_each(
            write_shard, shards, options.processes, f"sharding {manifest.path.stem}", "shard"
        ):
            if isinstance(result, Failed):
                raise UserError(f"{shard.path}: {result.reason}")
            skipped |= {f"{manifest.path.name}: {name}": reason for name, reason in result.items()}
        _remove_after(out, manifest.path.stem, len(shards))
        entries = [entry for shard in shards for entry in read_shard(shard.path)]
        if not entries:
            raise UserError(f"{manifest.path}: none of its mixtures can be read: {next(iter(skipped.values()))}")
        write_manifest(out / manifest.path.name, entries)
        size = sum(shard.path.stat().st_size for shard in shards) / 1e6
        print(f"{manifest.path.name}: {len(entries)} mixtures in {len(shards)} shard(s), {size:.1f} MB")
    listed = write_skipped(out, skipped)
    if listed is not None:
        first = next(iter(skipped.values()))
        print(f"warning: {len(skipped)} mixture(s) left out, listed in {listed}; the first: {first}", file=sys.stderr)
    return out


def _remove_after(out: Path, stem: str, count: int) -> None:
    """Remove shards of an earlier, larger set of this name, which readers of all shards would take for this set's."""
    for path in out.glob(f"{stem}-*.tar"):
        number = re.fullmatch(re.escape(stem) + r"-(\d{6})\.tar", path.name)
        if number is not None and int(number[1]) >= count:
            index_path(path).unlink(missing_ok=True)
            path.unlink()
