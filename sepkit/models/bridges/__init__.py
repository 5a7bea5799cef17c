"""Bridges: load the weights of other toolkits' models, and write weights for them."""

from sepkit.models.bridges.asteroid import from_asteroid, to_asteroid_state_dict
from sepkit.models.bridges.sepreformer import from_sepreformer
from sepkit.models.bridges.speechbrain import from_speechbrain
from sepkit.models.bridges.sr_corrnet import from_sr_corrnet
from sepkit.models.bridges.tf_locoformer import from_tf_locoformer
from sepkit.models.bridges.tiger import from_tiger
from sepkit.models.bridges.torchaudio import from_torchaudio

__all__ = [
    "from_asteroid",
    "from_sepreformer",
    "from_speechbrain",
    "from_sr_corrnet",
    "from_tf_locoformer",
    "from_tiger",
    "from_torchaudio",
    "to_asteroid_state_dict",
]
