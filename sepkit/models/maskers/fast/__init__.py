"""Faster ways to compute maskers on CPUs. `sepkit.models.maskers` imports them, so that they register.

A masker's own file follows its paper. The functions here replace its methods where only time and memory differ; `guard`
decides where that is.
"""

from sepkit.models.maskers.fast import folded, recomputed, time_major

__all__ = ["folded", "recomputed", "time_major"]
