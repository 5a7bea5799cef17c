"""`sepkit prepare CORPUS`: recordings in, manifests out."""

from sepkit.cli._parser import OptionsCommand
from sepkit.corpora import options
from sepkit.studies import preparations

COMMANDS = {
    "mini": OptionsCommand(options.MiniOptions, "sepkit.corpora.mini:prepare_mini"),
    "pulses": OptionsCommand(options.PulsesOptions, "sepkit.corpora.pulses:prepare_pulses"),
    "folder": OptionsCommand(options.FolderOptions, "sepkit.corpora.folder:prepare_folder"),
    "conversation": OptionsCommand(options.ConversationOptions, "sepkit.corpora.conversation:prepare_conversation"),
    "mixed": OptionsCommand(options.MixedOptions, "sepkit.corpora.mixed:prepare_mixed"),
    "librimix": OptionsCommand(options.LibriMixOptions, "sepkit.corpora.librimix:prepare_librimix"),
    "wsj0-mix": OptionsCommand(options.WSJ0MixOptions, "sepkit.corpora.wsj0mix:prepare_wsj0_mix"),
    "vctk-2mix": OptionsCommand(options.VCTK2MixOptions, "sepkit.corpora.vctk2mix:prepare_vctk2mix"),
    "wavs": OptionsCommand(options.WavsOptions, "sepkit.corpora.wavs:write_wavs"),
    **{kind: OptionsCommand(*command) for kind, command in preparations().items()},
}
"""Subcommand -> its options, and the function that takes them (imported only when it runs)."""
