"""Weights of other toolkits, in and out."""

from sepkit.models.bridges.asteroid import from_asteroid, to_asteroid_state_dict

__all__ = ["from_asteroid", "to_asteroid_state_dict"]
