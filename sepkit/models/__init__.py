"""Separation models: filterbanks, maskers, latent families, and the encoder-masker-decoder that joins them."""

from sepkit.models import maskers
from sepkit.models.emd import EncoderMaskerDecoder, build_model
from sepkit.models.published.pretrained import load_pretrained, load_weights_into, model_folder
from sepkit.models.storage.checkpoints import load_checkpoint, save_model

__all__ = [
    "EncoderMaskerDecoder",
    "build_model",
    "load_checkpoint",
    "load_pretrained",
    "load_weights_into",
    "maskers",
    "model_folder",
    "save_model",
]
