"""Where the time of a training step goes, for each masker: torch's profiler, self time on one thread.

Results are kept masker by masker; the same command again measures only those that are missing.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sepkit.config import (
    BandSplitRNNConfig,
    ContinuousDepthConfig,
    ConvTasNetConfig,
    DeterministicConfig,
    DualPathRNNConfig,
    FilterbankConfig,
    FreeFilterbankConfig,
    GatedRecurrenceConfig,
    ImprovedSuDoRMRFConfig,
    MaskerConfig,
    ModelConfig,
    ObjectiveConfig,
    RecurrentConfig,
    SepFormerConfig,
    SepReformerConfig,
    STFTFilterbankConfig,
    SuDoRMRFConfig,
    TFLocoformerConfig,
)
from sepkit.data import audio
from sepkit.data.dataset import MixtureDataset
from sepkit.data.manifest import MixtureEntry, SourceEntry, write_manifest
from sepkit.files import write_json
from sepkit.models import build_model
from sepkit.objectives import build_objective
from sepkit.types import Batch
from tools.bench.table import FOLDER, VERSIONS
from tools.bench.timing import environment

RESULTS = FOLDER / "results" / "steps.json"
VERSION = VERSIONS["steps"]
BATCH, SECONDS, SAMPLE_RATE = 2, 2.0, 8000
STEPS = 3
FREE, STFT = FreeFilterbankConfig(), STFTFilterbankConfig(kernel_size=256, stride=128)

MASKERS: dict[str, tuple[MaskerConfig, FilterbankConfig]] = {
    "conv_tasnet": (ConvTasNetConfig(blocks=4, repeats=1), FREE),
    "dual_path_rnn": (DualPathRNNConfig(repeats=1), FREE),
    "sudormrf": (SuDoRMRFConfig(blocks=2), FreeFilterbankConfig(512, 21, 10)),
    "improved_sudormrf": (ImprovedSuDoRMRFConfig(blocks=2), FreeFilterbankConfig(512, 21, 10)),
    "recurrent, lstm": (RecurrentConfig(rnn="lstm"), STFT),
    "recurrent, gru": (RecurrentConfig(rnn="gru"), STFT),
    "gated_recurrence": (GatedRecurrenceConfig(), STFT),
    "continuous_depth": (ContinuousDepthConfig(), STFT),
    "band_split_rnn": (BandSplitRNNConfig(num_layers=1), STFT),
    "sepformer": (SepFormerConfig(num_layers=1, transformer_layers=1), FreeFilterbankConfig(256)),
    "sepreformer": (
        SepReformerConfig(channels=64),
        FreeFilterbankConfig(256, kernel_size=16, stride=4, mapping=True),
    ),
    "tf_locoformer": (
        TFLocoformerConfig(channels=96, num_layers=1, feedforward_dim=128, kernel_size=8),
        STFTFilterbankConfig(256, 64, compression=1.0, features="real_imaginary", complex_masks=True, mapping=True),
    ),
}
"""Full widths, but fewer blocks than papers have: they repeat the same operations. SepReformer, size T, is whole: with
fewer stages its attention would be between sixteen times as many frames."""

# Parts of names of operations, in the order in which they are looked for.
_KINDS = {
    "recurrences": ("rnn", "lstm", "gru", "Scan"),
    "convolutions": ("conv", "col2im", "im2col"),
    "matrix products": ("mm", "matmul", "linear", "attention", "dot", "einsum"),
}
_RANGES = ("filterbank", "loss", "optimizer")
KINDS = (*_KINDS, "filterbank", "loss", "norms and elementwise", "optimizer", "data")


@dataclass
class _Step:
    """A training step of a small model on a batch of noise, with named ranges for the profiler."""

    config: ModelConfig
    fused: bool = True

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = build_model(self.config).train()
        self.terms = build_objective(ObjectiveConfig())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=self.fused, foreach=not self.fused)
        bank = self.model.filterbank
        for name in ("encode", "decode"):
            setattr(bank, name, _named("filterbank", getattr(bank, name)))
        self.sources = torch.randn(BATCH, 2, round(SECONDS * SAMPLE_RATE))

    def __call__(self) -> None:
        mixture = self.sources.sum(1)
        active, lengths = torch.ones(BATCH, 2, dtype=torch.bool), torch.full((BATCH,), mixture.shape[1])
        self.optimizer.zero_grad(set_to_none=True)
        separation = self.model(mixture)
        with torch.profiler.record_function("loss"):
            loss = self.terms(Batch(mixture, self.sources, active, lengths, [""] * BATCH), separation).loss.mean()
        loss.backward()
        self.update()

    def update(self) -> None:
        """Clip gradients and update weights."""
        with torch.profiler.record_function("optimizer"):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()


def _named(name: str, function: Any) -> Any:
    def call(*arguments: Any, **more: Any) -> Any:
        with torch.profiler.record_function(name):
            return function(*arguments, **more)

    return call


def run(path: Path = RESULTS) -> dict[str, Any]:
    """Measure every masker that `path` lacks, and write it after each."""
    torch.set_num_threads(1)
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    here = environment()
    same = known.get("version") == VERSION and known.get("environment", {}).get("machine") == here["machine"]
    rows: dict[str, Any] = known["rows"] if same and "rows" in known else {}
    data_seconds = None
    for name, (masker, bank) in MASKERS.items():
        if name in rows:
            continue
        data_seconds = _data_seconds() if data_seconds is None else data_seconds
        config = ModelConfig(filterbank=bank, masker=masker)
        if getattr(bank, "mapping", False):
            config.masks = DeterministicConfig("linear")
        rows[name] = _measured(config, data_seconds)
        shares = ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in rows[name]["shares"].items())
        print(f"{name}, {rows[name]['seconds']:.2f} s: {shares}", flush=True)
        write_json(path, {"version": VERSION, "rows": rows, "environment": here})
    return {"version": VERSION, "rows": rows, "environment": here}


def _measured(config: ModelConfig, data_seconds: float) -> dict[str, Any]:
    step = _Step(config)
    step()
    began = time.process_time()
    for _ in range(STEPS):
        step()
    seconds = (time.process_time() - began) / STEPS
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(STEPS):
            step()
    spent = dict.fromkeys(KINDS, 0.0)
    for kind, microseconds in _kinds(list(profile.events())):
        spent[kind] += microseconds
    total = sum(spent.values())
    shares = {kind: value / total * seconds / (seconds + data_seconds) for kind, value in spent.items()}
    shares["data"] = data_seconds / (seconds + data_seconds)
    return {
        "seconds": seconds + data_seconds,
        "parameters": sum(weight.numel() for weight in step.model.parameters()),
        "shares": shares,
        "fused_times_faster": _fused_ratio(config),
    }


def _kinds(events: list[Any]) -> Iterable[tuple[str, float]]:
    """Yield the kind and the self time of each operation; those of a backward pass are of the forward's range."""
    range_of = {}
    for event in events:
        inside = next((above.name for above in _ancestors(event) if above.name in _RANGES), None)
        if inside is not None and event.sequence_nr >= 0:
            range_of[event.sequence_nr] = inside
    for event in events:
        above = list(_ancestors(event))
        kind = next((one.name for one in above if one.name in _RANGES), None)
        if kind is None:
            backward = (one for one in above if one.name.startswith("autograd::engine"))
            kind = next((range_of[one.sequence_nr] for one in backward if one.sequence_nr in range_of), None)
        yield kind or kind_of(event.name), event.self_cpu_time_total


def _ancestors(event: Any) -> Iterable[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


def kind_of(operation: str) -> str:
    """Return the kind of an operation by its name in the profiler."""
    found = (kind for kind, parts in _KINDS.items() if any(part in operation for part in parts))
    return next(found, "norms and elementwise")


def _fused_ratio(config: ModelConfig, turns: int = 9) -> float:
    """How many times faster clipping and a fused Adam are than with an Adam of one operation after another."""
    steps = {fused: _Step(config, fused) for fused in (True, False)}
    times: dict[bool, list[float]] = {True: [], False: []}
    for step in steps.values():
        for weight in step.model.parameters():
            weight.grad = torch.ones_like(weight)
        step.update()
    for _ in range(turns):
        for fused, step in steps.items():
            began = time.process_time()
            step.update()
            times[fused].append(time.process_time() - began)
    return statistics.median(b / a for a, b in zip(times[True], times[False], strict=True))


def _data_seconds(count: int = 40) -> float:
    """Seconds to make one batch: mixtures of two wavs, described in a manifest and mixed when they are read."""
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder, entries = Path(temporary), []
        for number in range(count):
            parts = [SourceEntry(path=f"{number}_{j}.wav", speaker=f"{number}{j}") for j in range(2)]
            for part in parts:
                waveform = 0.1 * generator.standard_normal(4 * SAMPLE_RATE).astype(np.float32)
                audio.write(folder / part.path, waveform, SAMPLE_RATE, subtype="PCM_16")
            entries.append(
                MixtureEntry(
                    id=str(number), sample_rate=SAMPLE_RATE, num_samples=4 * SAMPLE_RATE, sources=parts, corpus="noise"
                )
            )
        dataset = MixtureDataset(write_manifest(folder / "train.jsonl", entries), segment_seconds=SECONDS)
        dataset[0]
        began = time.process_time()
        items: list[Tensor] = [dataset[index] for index in range(count)]
        return (time.process_time() - began) / len(items) * BATCH
