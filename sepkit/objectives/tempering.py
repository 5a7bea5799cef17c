"""Tempering multiplies the log joint by an inverse temperature that rises to 1; the posteriors' entropy keeps weight 1.

The objective becomes E_q[log q(z | x) - beta log p(x, z)], the reverse KL divergence from a tempered posterior. At
beta = 1 it is the negative evidence lower bound. A weight on the rate (KL warm-up) does the opposite: it starts with
every latent dimension alive, while tempering starts with none (`sepkit plan-schedule kl-warmup`).

Source: annealed VI paper, eq. 2.2.
"""

from __future__ import annotations

import math

from sepkit.config import ScheduleConfig
from sepkit.errors import UserError
from sepkit.registry import build
from sepkit.schedules import Schedule

# A schedule that ever reaches 1 has reached it by this progress, in epochs.
_FOREVER = 1e9
_ONE = 1e-6


class Tempering:
    """The inverse temperature of one objective, shared by its terms.

    Args:
        schedule: of beta, over epochs.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.beta = schedule(0.0)

    @property
    def scheduled(self) -> dict[str, float]:
        """Beta now, by name."""
        return {"inverse_temperature": self.beta}

    def at(self, t_epochs: float) -> float:
        """Set beta to its present value, and return it."""
        self.beta = self.schedule(t_epochs)
        return self.beta


def build_tempering(config: ScheduleConfig | None, variational: bool, unit: str, free_nats: bool) -> Tempering | None:
    """Return the tempering that a configuration describes; None if there is none.

    Args:
        free_nats: whether rates have free nats.
    """
    if config is None:
        return None
    where = "objective.rates.tempering"
    if not variational:
        raise UserError(f"{where}: the model's latents are deterministic, so there is no posterior to temper")
    if unit != "nats":
        raise UserError(f"{where}: found a cost in {unit}, expected a likelihood; set objective.cost.name to blr_nll")
    if free_nats:
        raise UserError(f"{where}: cannot be combined with free_nats, which bound a rate that is not tempered")
    initial = getattr(config, "initial", None)
    if initial is not None and not 0 < initial < 1:
        raise UserError(f"{where}.initial: found {initial:g}, expected a number between 0 and 1")
    schedule: Schedule = build(config)
    first, last = schedule(0.0), schedule(_FOREVER)
    if not (0 < first < 1 and math.isclose(last, 1.0, abs_tol=_ONE)):
        raise UserError(
            f"{where}: found a schedule from {first:g} to {last:g}, expected one that rises from above 0 to 1"
        )
    return Tempering(schedule)
