"""Small recordings, and options that make commands small."""

from pathlib import Path

import numpy as np

from sepkit.data import audio

TINY_RUN = "--trainer.max_epochs 1 --data.segment_seconds 0.5 --data.batch_size 2 --data.workers 0"
TINY_RUN += " --data.min_seconds 0 --trainer.accelerator cpu"
TINY_RECURRENT = "--model.masker.hidden_size 8 --model.masker.num_layers 1"
TINY_MASKER = {
    "recurrent_stft": TINY_RECURRENT,
    "small.yaml": f"{TINY_RECURRENT} --data.mixtures_per_epoch 4",
    "latent.yaml": f"{TINY_RECURRENT} --data.mixtures_per_epoch 4",
    "boxed.yaml": "",
    "continuous_depth": "--model.masker.model_dim 8 --model.masker.hidden_size 8",
    "conv_tasnet": "--model.masker.hidden_channels 8 --model.masker.blocks 1 --model.masker.repeats 1",
}
TINY = {
    ("prepare", "audiograms"): "--examples 128",
    ("prepare", "mini"): "--train-voices 4 --train-sentences 1 --heldout-sentences 1 --segment-seconds 1 "
    "--train-mixtures 8 --dev-mixtures 28 --test-mixtures 8",
    ("prepare", "images"): "--images 80",
    # A prediction of quality is fitted on no fewer than these.
    ("prepare", "folder"): "--test-mixtures 4 --dev-mixtures 30 --segment-seconds 1",
    ("report", "exp/own"): "--examples 0",
    ("report", "results/boxed_8k"): "--examples 0",
    ("train", "audiogram"): "--trainer.max_epochs 1 --trainer.validate_every_epochs 1 --model.hidden [8]",
    ("train", "speaker_encoder"): "--trainer.max_epochs 1 --data.batch_size 2 --model.channels 8",
    ("train", "cdvae"): "--trainer.max_epochs 1 --trainer.validate_every_epochs 1 --model.width 4 "
    "--model.drift_width 4 --data.batch_size 128",
}
"""Two words of a command -> options that make it small."""
TINY_TEXT = {
    "seeds: 4, steps: 400": "seeds: 2, steps: 40, examples: 1000, test_examples: 500",
    "free: {temperatures: [1.3": "free: {points: 400, temperatures: [1.3",
}
"""Parts of files of the pages -> what makes an experiment small, for commands that have no options for it."""


def write_recordings(folder: Path) -> None:
    """A tree split/speaker/file.wav of colored noise."""
    generator = np.random.default_rng(0)
    for split, speakers in (("train", 3), ("dev", 5), ("test", 2)):
        for speaker in range(speakers):
            for utterance in range(2):
                noise = np.cumsum(generator.standard_normal(16000)) / 300
                name = f"{split}/{split}{speaker}/{split}{speaker}-{utterance}.wav"
                audio.write(folder / name, (noise - noise.mean()).astype(np.float32), 8000)


def tiny_text(text: str) -> str:
    """Return a file of a page with what makes its experiment small."""
    for part, smaller in TINY_TEXT.items():
        text = text.replace(part, smaller)
    return text


def tiny_options(arguments: list[str]) -> list[str]:
    """Options that make a command small."""
    for (command, word), options in TINY.items():
        if arguments[0] == command and word in arguments:
            return options.split()
    if arguments[0] in ("train", "smoke") and "--help" not in arguments:
        tiny = "" if "--model.masker.name" in arguments else TINY_MASKER[arguments[arguments.index("--config") + 1]]
        return [*TINY_RUN.split(), *tiny.split()]
    return []
