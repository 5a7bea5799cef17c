"""`sepkit prepare CORPUS`: recordings in, manifests out."""

from __future__ import annotations

from sepkit.cli._parser import OptionsCommand
from sepkit.corpora import options
from sepkit.studies.acquisition.options import AudiogramOptions, NHANESOptions
from sepkit.studies.clustering.options import VoicesOptions
from sepkit.studies.continuous_depth.options import ImagesOptions
from sepkit.studies.quantization.options import UCIOptions

COMMANDS = {
    "mini": OptionsCommand(options.MiniOptions, "sepkit.corpora.mini:prepare_mini"),
    "pulses": OptionsCommand(options.PulsesOptions, "sepkit.corpora.pulses:prepare_pulses"),
    "folder": OptionsCommand(options.FolderOptions, "sepkit.corpora.folder:prepare_folder"),
    "conversation": OptionsCommand(options.ConversationOptions, "sepkit.corpora.conversation:prepare_conversation"),
    "mixed": OptionsCommand(options.MixedOptions, "sepkit.corpora.mixed:prepare_mixed"),
    "librimix": OptionsCommand(options.LibriMixOptions, "sepkit.corpora.librimix:prepare_librimix"),
    "wsj0-mix": OptionsCommand(options.WSJ0MixOptions, "sepkit.corpora.wsj0mix:prepare_wsj0_mix"),
    "vctk-2mix": OptionsCommand(options.VCTK2MixOptions, "sepkit.corpora.vctk2mix:prepare_vctk2mix"),
    "audiograms": OptionsCommand(AudiogramOptions, "sepkit.studies.acquisition.prepare:prepare_audiograms"),
    "nhanes": OptionsCommand(NHANESOptions, "sepkit.studies.acquisition.prepare:prepare_nhanes"),
    "voices": OptionsCommand(VoicesOptions, "sepkit.studies.clustering.collections:prepare_voices"),
    "uci": OptionsCommand(UCIOptions, "sepkit.studies.quantization.uci_data:prepare_uci"),
    "images": OptionsCommand(ImagesOptions, "sepkit.studies.continuous_depth.data:prepare_images"),
    "wavs": OptionsCommand(options.WavsOptions, "sepkit.corpora.wavs:write_wavs"),
    "shards": OptionsCommand(options.ShardsOptions, "sepkit.corpora.sharding:write_shards"),
}
"""Subcommand -> its options, and the function that takes them (imported only when it runs)."""
