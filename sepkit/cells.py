"""Cells of an experiment: computed one by one, kept, and not computed again."""

import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sepkit.files import read_json, write_json


def cell_seed(seed: int, name: str) -> int:
    """Return the seed of a cell, which follows from that of the experiment and the cell's name alone."""
    return zlib.crc32(f"{seed} {name}".encode())


def run_cells(
    cells: Mapping[str, dict[str, Any]], compute: Callable[..., dict[str, Any]], folder: Path, seed: int
) -> dict[str, dict[str, Any]]:
    """Return the results of all cells by name, with `processor_seconds` and `wall_seconds` of each.

    `cells` are the keyword arguments of `compute` beside `seed`, by name. A cell is FOLDER/NAME.json. A file with the
    same settings is read, so another call continues where one stopped.
    """
    from tqdm import tqdm

    results: dict[str, dict[str, Any]] = {}
    for name, settings in tqdm(cells.items(), desc=folder.name, unit="cell", disable=None):
        path = folder / f"{name}.json"
        settings = settings | {"seed": cell_seed(seed, name)}
        kept = read_json(path, "remove it, it is made anew") if path.is_file() else None
        if not (isinstance(kept, dict) and kept.get("settings") == settings):
            processor, wall = time.process_time(), time.perf_counter()
            result = compute(**settings)
            seconds = {
                "processor_seconds": round(time.process_time() - processor, 3),
                "wall_seconds": round(time.perf_counter() - wall, 3),
            }
            kept = {"settings": settings, "result": result | seconds}
            write_json(path, kept)
        results[name] = settings | kept["result"]
    return results
