"""Levels of estimates: their strength in the mixture, and how they add up to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sepkit.inference.options import Levels


@dataclass
class Products:
    """Inner products of estimates with each other and with the mixture, float64: all that levels depend on.

    Args:
        gram: (n, n) <s_i, s_j>.
        cross: (n,) <x, s_i>.
        sums: (n,) sums of the samples of s_i.
        num_samples: T.
    """

    gram: np.ndarray
    cross: np.ndarray
    sums: np.ndarray
    num_samples: int

    def centered(self) -> np.ndarray:
        """(n, n) inner products of the estimates less their means."""
        return self.gram - np.outer(self.sums, self.sums) / self.num_samples


def products_of(mixture: np.ndarray, estimates: np.ndarray) -> Products:
    """Return the inner products of a mixture and estimates in memory.

    Args:
        mixture: (T,).
        estimates: (n, T).
    """
    mixture, estimates = mixture.astype(np.float64), estimates.astype(np.float64)
    return Products(estimates @ estimates.T, estimates @ mixture, estimates.sum(-1), len(mixture))


def gains_of(products: Products, levels: Levels, consistent: bool, kept: np.ndarray) -> np.ndarray:
    """Return (n,) float32 gains of the estimates; one number for the whole recording.

    * levels "model": 1.
    * levels "mixture": those of the projections of the mixture on each estimate, <x, s_i> / <s_i, s_i>, so that none is
      ever stronger than the mixture.
    * consistent: of the estimates that are kept those whose sum is nearest to the mixture, the least squares
      solution of <s_i, s_j> g = <x, s_i>; of several solutions (estimates that are alike) the smallest.

    A silent estimate has 0.

    Args:
        products: of the model's estimates.
        levels: see above.
        consistent: see above; goes before `levels` for the estimates that are kept.
        kept: (k,) which estimates are.
    """
    energies = np.diagonal(products.gram)
    if levels == "model":
        gains = np.ones(len(energies))
    else:
        gains = np.divide(products.cross, energies, out=np.zeros(len(energies)), where=energies > 0)
    if consistent and kept.size:
        norms = np.sqrt(np.maximum(energies[kept], np.finfo(np.float64).tiny))
        unit = products.gram[np.ix_(kept, kept)] / np.outer(norms, norms)
        gains[kept] = np.linalg.lstsq(unit, products.cross[kept] / norms, rcond=1e-6)[0] / norms
        gains[energies == 0] = 0
    return gains.astype(np.float32)


def residual_shares(products: Products, gains: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the shares of the estimates kept in the rest that estimates leave of the mixture, (k,) float32.

    Shares are proportional to the estimates' energies and sum to one; they are equal if all are silent.

    Args:
        products: of the mixture and all n estimates.
        gains: (n,), of `gains_of`.
        kept: (k,) int, which estimates are kept.
    """
    energies = np.square(gains[kept].astype(np.float64)) * np.diagonal(products.gram)[kept]
    total = energies.sum()
    shares = energies / total if total > 0 else np.full(len(kept), 1 / max(1, len(kept)))
    return shares.astype(np.float32)


def distribute_residual(mixture: np.ndarray, estimates: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return estimates that add up to the mixture, (k, T) float32: each gets its share of what they leave of it.

    Args:
        mixture: (T,).
        estimates: (k, T).
        shares: (k,), of `residual_shares`.

    Source: Wisdom et al., "Differentiable consistency constraints for improved deep speech enhancement", 2019, eq. 9.
    """
    return estimates + shares[:, None] * (mixture - estimates.sum(0))
