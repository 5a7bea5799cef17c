"""Schedules of objectives, defined in `sepkit.schedules`."""

from sepkit.schedules import *  # noqa: F403
