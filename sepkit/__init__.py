"""sepkit separates overlapping speakers, trains the models that do, and measures how well that went.

**Separate.** The default model ships with the package: two speakers, 8 kHz. Recordings of any rate go in, and estimates
come out at the same rate, length and level.

>>> import numpy as np, sepkit
>>> separator = sepkit.load_model()                   # or load_model("exp/model"), "asteroid:FILE", "hf:OWNER/NAME"
>>> mixture = np.random.default_rng(0).normal(0, 0.1, 16000).astype(np.float32)    # soundfile.read("talk.wav") ...
>>> separated = separator.separate(mixture, sample_rate=16000)
>>> separated.estimates.shape                         # one row for each speaker
(2, 16000)
>>> separated.predicted_si_sdr_db.shape               # what to expect of each, dB, without a reference
(2,)

Files and folders take one line: `sepkit separate talk.wav --out separated`. Recordings of hours go through in chunks of
bounded memory, and `sepkit stream` follows live sound.

**Measure.** Scores take estimates first, references second, and say their unit in their name.

>>> from sepkit.evaluation.metrics import si_sdr_db
>>> source = np.sin(np.arange(8000) / 9)
>>> float(si_sdr_db(source + 0.1 * np.cos(np.arange(8000) / 9), source).round(1))
20.0

`sepkit evaluate --model exp/model --manifest test.jsonl --out scores` writes a table of mixtures and a summary with
intervals, and so does `sepkit.evaluate("exp/model", "test.jsonl", "scores")`. `sepkit report` makes a page to look at
and to listen to.

**Train.** Any tree of recordings with one speaker in each file will do:

    sepkit prepare folder --speech recordings --out data
    sepkit train --config recurrent_stft --data.train data/train.jsonl --data.dev data/dev.jsonl --out exp

The same command again continues. `conf/` has a YAML file for every choice; `egs/` has recipes from corpus to table.

**Match.** What is trained is a choice of four independent parts: a pairwise cost (B, n, m) in dB or
nats, an assignment of n hypotheses to m sources, latents, and their rate.

>>> import torch
>>> from sepkit.objectives import assignment, costs
>>> sources = torch.stack([torch.sin(torch.arange(800) / 9), torch.sin(torch.arange(800) / 5)])[None]
>>> cost = costs.pairwise_neg_si_sdr(sources.flip(1) + 0.1 * sources, sources)             # (1, 2, 2)
>>> assignment.PIT().weights(cost)                    # permutation invariant training; also MCL, AnnealedMCL, Sinkhorn
tensor([[[0., 1.],
         [1., 0.]]])

A masker of your own is one class in a file of your own, named by `--import my_masker.py`.

Where to look next: `sepkit.models.EncoderMaskerDecoder` is the model, `sepkit.types` has what models and objectives
exchange, `sepkit.objectives` the costs and assignments, `sepkit.inference` separation, `sepkit.studies` the other
systems of the papers.
"""

import os
from typing import TYPE_CHECKING

from sepkit.lazy import lazy_names
from sepkit.version import __version__

# Set before the imports of ONNX Runtime, which sends events to Microsoft from 1.29 on, and of huggingface_hub, which
# reports transfers beside making them.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

__all__ = ["EvaluationOptions", "Separator", "__version__", "evaluate", "load_model"]

if TYPE_CHECKING:
    from sepkit.evaluation.evaluate import evaluate
    from sepkit.evaluation.options import EvaluationOptions
    from sepkit.inference.loading import load_model
    from sepkit.inference.separator import Separator

__getattr__ = lazy_names(
    __name__,
    {
        "EvaluationOptions": "evaluation.options",
        "Separator": "inference.separator",
        "evaluate": "evaluation.evaluate",
        "load_model": "inference.loading",
    },
)
