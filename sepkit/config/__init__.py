"""Every choice a user can make, as typed dataclasses without torch.

The command line, YAML files and checkpoints are made from these.

A *choice* is a dataclass picked by `name` ("conv_tasnet", "pit"). In YAML it is a mapping with that name and the
choice's own parameters:

    model:
      masker: {name: conv_tasnet, bottleneck_channels: 128}

`sepkit.choices` turns dataclasses into plain data and back.
"""

# ruff: noqa: F403
from sepkit.choices import *
from sepkit.config.data import *
from sepkit.config.encoders import *
from sepkit.config.maskers import *
from sepkit.config.model import *
from sepkit.config.objective import *
from sepkit.config.schedules import *
from sepkit.config.training import *
