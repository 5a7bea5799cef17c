"""The schedules under the name by which objectives know them; they are defined in `sepkit.schedules`."""

from sepkit.schedules import *  # noqa: F403
