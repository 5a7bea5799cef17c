"""Which mixtures of two evaluations are the same."""

from types import SimpleNamespace

import pytest

from sepkit.evaluation.comparison import _pairs


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        # One identifier in two manifests.
        (["a 1", "b 1", "a 2"], ["b 1", "a 2", "a 3"], [(1, 0), (2, 1)]),
        # Manifests that moved: identifiers count, if each run has them once.
        (["a 1", "a 2", "a 4"], ["b 2", "c 1"], [(0, 1), (1, 0)]),
        (["a 1", "c 1"], ["b 1", "b 2"], []),
        (["a 1"], ["b 1", "c 1"], []),
        (["a 1"], ["a 2"], []),
    ],
)
def test_mixtures_are_the_same_by_manifest_and_identifier_or_by_identifier(first, second, pairs) -> None:
    rows = [[dict(zip(("manifest", "id"), row.split(), strict=True)) for row in run] for run in (first, second)]
    runs = [SimpleNamespace(rows=run) for run in rows]
    assert _pairs(*runs) == pairs  # type: ignore[arg-type]
