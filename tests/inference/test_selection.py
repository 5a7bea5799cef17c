"""Which hypotheses are kept, and their gains, of estimates whose inner products are seen at a glance."""

import numpy as np
import pytest

from sepkit.inference import selection as module
from sepkit.inference.selection import Selection, gains_of, products_of, select_by_levels, select_by_scores

# Energies 4, 16, 1 and 0; no two have samples in common, and all have zero means.
ESTIMATES = np.array(
    [[2, -2, 0, 0, 0, 0, 0, 0], [0, 0, 4, -4, 0, 0, 0, 0], [0, 0, 0, 0, 1, -1, 0, 0], np.zeros(8)], np.float32
) / np.sqrt(2)  # fmt: skip
# The products with it are 2, 8, 3 and 0.
MIXTURE = np.array([1, -1, 2, -2, 3, -3, 0, 0], np.float32) / np.sqrt(2)
PRODUCTS = products_of(MIXTURE, ESTIMATES)
ALL = [0, 1, 2, 3]


def test_gains_by_hand() -> None:
    every = np.arange(4)
    assert gains_of(PRODUCTS, "model", False, every).tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(gains_of(PRODUCTS, "mixture", False, every), [0.5, 0.5, 3, 0], rtol=1e-6)
    # Only those that are kept add up to the mixture, whatever levels the others have.
    np.testing.assert_allclose(gains_of(PRODUCTS, "model", True, every[1:3]), [1, 0.5, 3, 0], rtol=1e-6)
    # 3 = g + h and 2 = h: the gains of (1, 0) and (1, 1) for (3, 2) depend on each other.
    slanted = products_of(np.array([3.0, 2.0]), np.array([[1.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(gains_of(slanted, "mixture", True, every[:2]), [1, 2], rtol=1e-6)
    np.testing.assert_allclose(gains_of(slanted, "mixture", False, every[:2]), [3, 2.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("speakers", "single", "kept", "speaks"),
    [
        *((speakers, False, ALL, ALL) for speakers in (None, "auto")),
        *((len(kept), False, kept, kept) for kept in ([1], [0, 1], [0, 1, 2])),
        # The speaker comes first.
        (None, True, [1, 0, 2, 3], [1]),
        ("auto", True, [1], [1]),
    ],
)
def test_the_strongest_are_kept(speakers, single: bool, kept: list[int], speaks: list[int]) -> None:
    found = select_by_levels(PRODUCTS, False, speakers, "mixture", False, single)
    assert found.kept.tolist() == kept and np.flatnonzero(found.is_speaker).tolist() == speaks
    assert found.joined is None and found.speakers == len(speaks)
    np.testing.assert_allclose(found.gains, [0.5] * 4 if single else [0.5, 0.5, 3, 0], rtol=1e-6)
    silent = select_by_levels(PRODUCTS, True, speakers, "mixture", False, single)
    assert silent.speakers == 0 and (speakers == "auto") == (not len(silent.kept))


def test_parts_of_one_voice_are_joined() -> None:
    found = select_by_levels(PRODUCTS, False, None, "model", True, True, True).scaled(2.0)
    # Least squares for the speaker alone: 8 / 16.
    assert found.gains.tolist() == found.joined.tolist() == [1.0] * 4
    outputs = found.outputs(ESTIMATES)
    np.testing.assert_allclose(outputs[0], ESTIMATES.sum(0))
    np.testing.assert_allclose(outputs[1:], ESTIMATES[[0, 2, 3]])
    assert found.shares(PRODUCTS).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("speakers", "threshold", "kept"),
    [("auto", 0.0, [0, 2]), ("auto", 1.0, [2]), (1, 0.0, [2]), (2, 0.0, [0, 2]), (3, 9.0, [0, 1, 2]), (None, 0.0, ALL)],
)
def test_the_best_scored_are_kept(speakers, threshold: float, kept: list[int]) -> None:
    """A score at the threshold is not above it; silence is no speaker, whatever its score."""
    scores = np.array([1.0, -1.0, 2.0, 5.0])
    found = select_by_scores(PRODUCTS, scores, False, speakers, threshold, "mixture", True)
    assert found.kept.tolist() == kept
    assert np.flatnonzero(found.is_speaker).tolist() == ([0, 2] if speakers is None else kept)
    np.testing.assert_allclose(found.gains, [0.5, 0.5, 3, 0], rtol=1e-6)
    assert select_by_scores(PRODUCTS, scores, True, speakers, threshold, "mixture", True).speakers == 0


def test_of_duplicates_the_better_scored_one_speaks() -> None:
    """Also at other levels, and beside a constant, which is silence."""
    products = products_of(MIXTURE, np.stack([ESTIMATES[0], -9 * ESTIMATES[0], ESTIMATES[1], np.full(8, 7.0)]))
    found = select_by_scores(products, np.array([1.0, 2.0, 0.5, 3.0]), False, "auto", 0.0, "model", False)
    assert found.kept.tolist() == [1, 2]


def test_shares_are_those_of_the_energies() -> None:
    """Gains of 1, 2 and 4 turn energies of 4, 16 and 1 into 4, 64 and 16; the last two are kept: 0.8 and 0.2."""
    selection = Selection(np.array([1.0, 2.0, 4.0, 1.0], np.float32), np.array([1, 2]))
    np.testing.assert_allclose(selection.shares(PRODUCTS), [0.8, 0.2], rtol=1e-6)
    np.testing.assert_allclose(selection.outputs(ESTIMATES), [2 * ESTIMATES[1], 4 * ESTIMATES[2]])
    assert selection.speakers is None
    assert Selection(np.zeros(4, np.float32), np.arange(4)).shares(PRODUCTS).tolist() == [0.25] * 4
    left = module.distribute_residual(np.array([4.0, 1.0]), np.array([[1.0, 0.0], [1.0, 3.0]]), np.array([0.75, 0.25]))
    assert left.tolist() == [[2.5, -1.5], [1.5, 2.5]]
