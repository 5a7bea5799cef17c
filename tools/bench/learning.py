"""A learning race: SI-SDRi on unseen speakers after some minutes of one core, from random weights.

Every system trains on the same mixtures of the recordings below `$SEPKIT_DATA/speech_mini`, mixed anew in every epoch,
3 s at 8 kHz. Networks, losses, optimizers and training loops are each toolkit's own, with the settings of its recipe.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from sepkit.cli.train import run as train
from sepkit.config import DynamicMixingConfig
from sepkit.corpora.folder import prepare_folder
from sepkit.corpora.options import FolderOptions
from sepkit.data.dataset import Example, MixtureDataset, collate
from sepkit.errors import UserError
from sepkit.evaluation.evaluate import Evaluated, evaluate
from sepkit.evaluation.options import EvaluationOptions
from sepkit.files import write_json
from sepkit.models.storage.folders import read_description
from sepkit.training import callbacks
from tools.bench.measure import apart, environment, machine_and_commit

MIXING = DynamicMixingConfig(enabled=True, gain_range_db=2.5, speed_range=0.1, bank_gib=4.0, bank_speeds=5)
"""The mixtures of every system; those of `conf/trainer/cpu.yaml`."""
MINUTES = (5, 15, 45)
_BATCH_SIZE = 8
_TINY: dict[str, dict[str, Any]] = {"asteroid": {"n_blocks": 2, "n_repeats": 1}, "speechbrain": {"X": 2, "R": 1}}


@dataclass(frozen=True)
class Race:
    """What is raced.

    Args:
        minutes: Processor time of one core, rising; scores are given after each.
        mixtures: Test mixtures of 4 s.
        epoch: Mixtures of an epoch of sepkit's own training.
        tiny: Whether networks are small, for tests.
        shared: Options of `sepkit train`, for all models of sepkit.
    """

    minutes: Sequence[float] = MINUTES
    mixtures: int = 200
    epoch: int = 320
    tiny: bool = False
    shared: Sequence[str] = ()


def run(unfinished: Path | None, race: Race | None = None, systems: Sequence[str] | None = None) -> dict[str, Any]:
    """Train every system in a process of its own, on one thread, and return its scores.

    Args:
        unfinished: Folder of manifests and of the scores that an interrupted call of this commit on such a machine
            measured; they are not measured again, and forgotten once all systems are. None: nothing is kept.
        race: Budgets and sizes; None: those of the page.
        systems: Names in `SYSTEMS`; None: all.

    Raises:
        UserError: SEPKIT_DATA is not set.
    """
    if "SEPKIT_DATA" not in os.environ:
        raise UserError("SEPKIT_DATA: not set, expected the folder that contains speech_mini, see docs/reproduce.md")
    race = race or Race()
    rows = []
    with TemporaryDirectory() as temporary:
        folder = (unfinished or Path(temporary)) / "learning"
        of, here = folder / "of.json", machine_and_commit()
        if folder.is_dir() and (not of.is_file() or json.loads(of.read_text(encoding="utf-8"))["of"] != here):
            rmtree(folder)
        if not (folder / "test.jsonl").is_file():
            speech = Path(os.environ["SEPKIT_DATA"]) / "speech_mini" / "wav8k"
            prepare_folder(FolderOptions(out=folder, speech=speech, test_mixtures=race.mixtures))
            write_json(of, {"of": here})
        for name in systems or SYSTEMS:
            apart(_measured, name, race, folder)
            files = (folder / "scores").glob(f"{_slug(name)}_*.json")
            scores = [json.loads(path.read_text(encoding="utf-8")) for path in files]
            rows.append({"what": name, "scores": sorted(scores, key=lambda score: score["core_minutes"])})
        if systems is None:
            rmtree(folder)
    return {"rows": rows, "environment": environment("asteroid", "speechbrain")}


def _slug(name: str) -> str:
    return name.replace(" ", "_").lower()


def _measured(name: str, race: Race, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    paths = {minutes: folder / "scores" / f"{_slug(name)}_{minutes:g}.json" for minutes in race.minutes}
    race = replace(race, minutes=[minutes for minutes, path in paths.items() if not path.is_file()])
    if not race.minutes:
        return
    (folder / "scores").mkdir(exist_ok=True)
    for minutes, system, spent, mixtures, parameters in SYSTEMS[name](folder, race):
        options = EvaluationOptions(metrics=["si_sdr"])
        out = folder / f"{_slug(name)}_{minutes:g}"
        rmtree(out, ignore_errors=True)  # Scores of another model, from an interrupted call.
        summary = evaluate(system, folder / "test.jsonl", out, options)
        score = {"core_minutes": minutes, "spent_minutes": spent, "mixtures": mixtures, "parameters": parameters}
        write_json(paths[minutes], score | summary["metrics"]["si_sdri_db"])
        print(f"{name}, {minutes:g} minutes: {summary['metrics']['si_sdri_db']['mean']:.2f} dB", flush=True)


Reached = Iterator[tuple[float, Evaluated, float, int, int]]
"""Of each budget: minutes, what separates, minutes spent, mixtures that it was trained on, parameters"""
Peer = tuple[nn.Module, Callable[[DataLoader[Any]], None]]
"""A model, and what trains it."""


def _of_sepkit(*settings: str) -> Callable[[Path, Race], Reached]:
    """Return a contestant that `sepkit train` trains once for each budget, since its learning rate falls to the end.

    Args:
        *settings: Options of `sepkit train`.
    """

    def reached(folder: Path, race: Race) -> Reached:
        shared = ["--data.train", str(folder / "train.jsonl"), "--data.dev", str(folder / "dev.jsonl")]
        shared += ["--data.mixtures_per_epoch", str(race.epoch), "--data.batch_size", str(_BATCH_SIZE)]
        shared += ["--trainer.max_epochs", "100000", "--trainer.validate_every_epochs", "100000"]
        for minutes in race.minutes:
            out = folder / f"{settings[1]}_{minutes:g}"
            rmtree(out, ignore_errors=True)  # Of an interrupted call, whose time was not kept.
            began = time.process_time()
            # The budget, and with it the learning rate, goes by processor time instead of the wall clock.
            with patch.object(callbacks, "time", SimpleNamespace(monotonic=time.process_time)):
                train([*settings, *race.shared, *shared, "--trainer.max_minutes", str(minutes), "--out", str(out)])
            spent, made = (time.process_time() - began) / 60, read_description(out / "model")
            yield minutes, str(out / "model"), spent, made["info"]["step"] * _BATCH_SIZE, made["parameters"]

    return reached


class _Mixtures(IterableDataset[Example]):
    """Mixtures and their sources for a peer's loop, until the budget of processor time is used up."""

    def __init__(self, folder: Path, race: Race) -> None:
        self.began, self.minutes, self.count = time.process_time(), 0.0, 0
        self._of = MixtureDataset(
            folder / "train.jsonl", segment_seconds=3.0, dynamic_mixing=MIXING, mixtures_per_epoch=race.epoch
        )

    def __iter__(self) -> Iterator[Example]:
        while self.spent() < self.minutes:
            self.count += 1
            yield self._of[divmod(self.count - 1, len(self._of))]

    def spent(self) -> float:
        """Return the minutes spent so far."""
        return (time.process_time() - self.began) / 60


def _pair(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    batch = collate(examples)
    return batch.mixture, batch.sources


def _of_peer(batch_size: int, make: Callable[[bool], Peer]) -> Callable[[Path, Race], Reached]:
    """Return a contestant that a peer's own loop trains: one run, with a score when each budget is used up."""

    def reached(folder: Path, race: Race) -> Reached:
        torch.manual_seed(0)
        model, fit = make(race.tiny)
        mixtures = _Mixtures(folder, race)
        for minutes in race.minutes:
            mixtures.minutes = minutes
            fit(DataLoader(mixtures, batch_size, collate_fn=_pair))
            spent, paused = mixtures.spent(), time.process_time()
            yield minutes, partial(_separate, model), spent, mixtures.count, sum(p.numel() for p in model.parameters())
            mixtures.began += time.process_time() - paused  # The evaluation does not count.

    return reached


@torch.inference_mode()
def _separate(model: nn.Module, mixture: np.ndarray, sample_rate: int) -> np.ndarray:
    return model.eval()(torch.from_numpy(mixture)[None].float())[0].numpy()


def _asteroid(tiny: bool) -> Peer:
    """Conv-TasNet with asteroid's system, loss and Lightning, as in its recipe for LibriMix."""
    import pytorch_lightning
    from asteroid.engine.system import System
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr
    from asteroid.models import ConvTasNet

    model = ConvTasNet(2, **(_TINY["asteroid"] if tiny else {}))
    loss = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def fit(loader: DataLoader[Any]) -> None:
        trainer = pytorch_lightning.Trainer(
            max_epochs=1, gradient_clip_val=5.0, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
        )  # fmt: skip
        trainer.fit(System(model.train(), optimizer, loss, loader))

    return model, fit


class _SpeechBrainConvTasNet(nn.Module):
    """Conv-TasNet of speechbrain's parts, with the sizes of its recipe for WSJ0-2mix."""

    def __init__(self, tiny: bool) -> None:
        from speechbrain.lobes.models.conv_tasnet import MaskNet
        from speechbrain.lobes.models.dual_path import Decoder, Encoder

        super().__init__()
        sizes: dict[str, Any] = {"X": 6, "R": 4} | (_TINY["speechbrain"] if tiny else {})
        self.encoder = Encoder(kernel_size=16, out_channels=256)
        self.masknet = MaskNet(N=256, B=256, H=512, P=3, C=2, norm_type="gLN", causal=True, **sizes)
        self.decoder = Decoder(in_channels=256, out_channels=1, kernel_size=16, stride=8, bias=False)

    def forward(self, mixture: Tensor) -> Tensor:
        """Return estimates (B, 2, T)."""
        encoded = self.encoder(mixture)
        estimates = torch.stack([self.decoder(mask * encoded) for mask in self.masknet(encoded)], dim=1)
        return nn.functional.pad(estimates, (0, mixture.shape[-1] - estimates.shape[-1]))


def _speechbrain(tiny: bool) -> Peer:
    """Conv-TasNet with speechbrain's Brain and loss, as in its recipe for WSJ0-2mix."""
    import speechbrain
    from speechbrain.nnet.losses import get_si_snr_with_pitwrapper

    class Separation(speechbrain.Brain):
        def compute_forward(self, batch: Any, stage: Any) -> Tensor:
            return model(batch[0])

        def compute_objectives(self, predictions: Tensor, batch: Any, stage: Any) -> Tensor:
            loss = get_si_snr_with_pitwrapper(batch[1].transpose(1, 2), predictions.transpose(1, 2))
            return loss.clamp_min(-30.0).mean()

    model = _SpeechBrainConvTasNet(tiny)
    options = {"device": "cpu", "max_grad_norm": 5.0}
    brain = Separation({"model": model}, lambda weights: torch.optim.Adam(weights, lr=1.5e-4), run_opts=options)

    return model, lambda loader: brain.fit(range(1), loader, progressbar=False)


SYSTEMS: dict[str, Callable[[Path, Race], Reached]] = {
    "sepkit gated recurrence": _of_sepkit("--config", "gated_recurrence_stft", "--config", "trainer/cpu"),
    "sepkit Conv-TasNet": _of_sepkit(
        "--config", "conv_tasnet", "--config", "trainer/cpu", "--trainer.learning_rate", "1e-3"
    ),
    "asteroid Conv-TasNet": _of_peer(6, _asteroid),
    "speechbrain Conv-TasNet": _of_peer(1, _speechbrain),
}
"""Name -> contestant."""
