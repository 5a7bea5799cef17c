"""Tests of `tools`, which is no part of the package: found beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
