"""Bridges: load the weights of other toolkits' models, and write weights for them."""

from sepkit.models.bridges.asteroid import from_asteroid as from_asteroid
from sepkit.models.bridges.asteroid import to_asteroid_state_dict as to_asteroid_state_dict
from sepkit.models.bridges.sepreformer import from_sepreformer as from_sepreformer
from sepkit.models.bridges.speechbrain import from_speechbrain as from_speechbrain
from sepkit.models.bridges.sr_corrnet import from_sr_corrnet as from_sr_corrnet
from sepkit.models.bridges.sudormrf import from_sudormrf as from_sudormrf
from sepkit.models.bridges.tf_locoformer import from_tf_locoformer as from_tf_locoformer
from sepkit.models.bridges.tiger import from_tiger as from_tiger
from sepkit.models.bridges.torchaudio import from_torchaudio as from_torchaudio
