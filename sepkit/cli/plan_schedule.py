"""`sepkit plan-schedule KIND`: plan an annealing schedule from theory instead of by search."""

from sepkit.annealing.planning import plan_amcl

COMMANDS = {"amcl": plan_amcl}
