"""Separation models: filterbanks, maskers, latent families, and the encoder-masker-decoder that joins them.

>>> import torch
>>> from sepkit.config import ModelConfig, RecurrentConfig
>>> from sepkit.models import build_model
>>> model = build_model(ModelConfig(hypotheses=2, masker=RecurrentConfig(hidden_size=8, num_layers=1)))
>>> separation = model.eval()(torch.randn(1, 8000))
>>> separation.estimates.shape
torch.Size([1, 2, 8000])
"""

from typing import TYPE_CHECKING

from sepkit.lazy import lazy_names

if TYPE_CHECKING:
    from sepkit.models import maskers as maskers
    from sepkit.models.emd import EncoderMaskerDecoder as EncoderMaskerDecoder
    from sepkit.models.emd import build_model as build_model
    from sepkit.models.published.names import model_folder as model_folder
    from sepkit.models.published.pretrained import load_pretrained as load_pretrained
    from sepkit.models.published.pretrained import load_weights_into as load_weights_into
    from sepkit.models.storage.checkpoints import load_checkpoint as load_checkpoint
    from sepkit.models.storage.checkpoints import save_model as save_model

__getattr__ = lazy_names(
    __name__,
    {
        "EncoderMaskerDecoder": "emd",
        "build_model": "emd",
        "load_checkpoint": "storage.checkpoints",
        "load_pretrained": "published.pretrained",
        "load_weights_into": "published.pretrained",
        "model_folder": "published.names",
        "save_model": "storage.checkpoints",
    },
)
