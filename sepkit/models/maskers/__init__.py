"""Maskers: features (B, K, F) -> raw mask values (B, n, P, K, F). Adding one is one file and one line here.

A masker's file is imported when the masker is asked for, by its class or by its configuration.
"""

from typing import TYPE_CHECKING

from sepkit import config
from sepkit.lazy import lazy_names
from sepkit.registry import offer

if TYPE_CHECKING:
    from sepkit.models.maskers import fast as fast
    from sepkit.models.maskers.base import Masker as Masker
    from sepkit.models.maskers.continuous_depth import ContinuousDepthMasker as ContinuousDepthMasker
    from sepkit.models.maskers.conv_tasnet import ConvTasNetMasker as ConvTasNetMasker
    from sepkit.models.maskers.dual_path_rnn import DualPathRNNMasker as DualPathRNNMasker
    from sepkit.models.maskers.gated_recurrence import GatedRecurrenceMasker as GatedRecurrenceMasker
    from sepkit.models.maskers.recurrent import RecurrentMasker as RecurrentMasker
    from sepkit.models.maskers.sepformer import SepFormerMasker as SepFormerMasker
    from sepkit.models.maskers.sepreformer import SepReformerMasker as SepReformerMasker
    from sepkit.models.maskers.sr_corrnet import SRCorrNetMasker as SRCorrNetMasker
    from sepkit.models.maskers.sudormrf import ImprovedSuDoRMRFMasker as ImprovedSuDoRMRFMasker
    from sepkit.models.maskers.sudormrf import SuDoRMRFMasker as SuDoRMRFMasker
    from sepkit.models.maskers.tf_locoformer import TFLocoformerMasker as TFLocoformerMasker
    from sepkit.models.maskers.tiger import TIGERMasker as TIGERMasker

_MASKERS = {
    "ContinuousDepthMasker": ("continuous_depth", config.ContinuousDepthConfig),
    "ConvTasNetMasker": ("conv_tasnet", config.ConvTasNetConfig),
    "DualPathRNNMasker": ("dual_path_rnn", config.DualPathRNNConfig),
    "GatedRecurrenceMasker": ("gated_recurrence", config.GatedRecurrenceConfig),
    "ImprovedSuDoRMRFMasker": ("sudormrf", config.ImprovedSuDoRMRFConfig),
    "RecurrentMasker": ("recurrent", config.RecurrentConfig),
    "SepFormerMasker": ("sepformer", config.SepFormerConfig),
    "SepReformerMasker": ("sepreformer", config.SepReformerConfig),
    "SRCorrNetMasker": ("sr_corrnet", config.SRCorrNetConfig),
    "SuDoRMRFMasker": ("sudormrf", config.SuDoRMRFConfig),
    "TFLocoformerMasker": ("tf_locoformer", config.TFLocoformerConfig),
    "TIGERMasker": ("tiger", config.TIGERConfig),
}

offer({config_type: f"{__name__}.{module}" for module, config_type in _MASKERS.values()})

__getattr__ = lazy_names(__name__, {name: module for name, (module, _) in _MASKERS.items()} | {"Masker": "base"})
