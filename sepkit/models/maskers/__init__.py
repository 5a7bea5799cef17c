"""Maskers: features (B, K, F) -> raw mask values (B, n, P, K, F). Adding one is one file and one line here."""

from sepkit.models.maskers import fast
from sepkit.models.maskers.band_split_rnn import BandSplitRNNMasker
from sepkit.models.maskers.base import Masker
from sepkit.models.maskers.continuous_depth import ContinuousDepthMasker
from sepkit.models.maskers.conv_tasnet import ConvTasNetMasker
from sepkit.models.maskers.dual_path_rnn import DualPathRNNMasker
from sepkit.models.maskers.gated_recurrence import GatedRecurrenceMasker
from sepkit.models.maskers.recurrent import RecurrentMasker
from sepkit.models.maskers.sepformer import SepFormerMasker
from sepkit.models.maskers.sepreformer import SepReformerMasker
from sepkit.models.maskers.sudormrf import ImprovedSuDoRMRFMasker, SuDoRMRFMasker
from sepkit.models.maskers.tf_locoformer import TFLocoformerMasker

__all__ = [
    "BandSplitRNNMasker",
    "ContinuousDepthMasker",
    "ConvTasNetMasker",
    "DualPathRNNMasker",
    "GatedRecurrenceMasker",
    "ImprovedSuDoRMRFMasker",
    "Masker",
    "RecurrentMasker",
    "SepFormerMasker",
    "SepReformerMasker",
    "SuDoRMRFMasker",
    "TFLocoformerMasker",
    "fast",
]
