"""Makers of the contestants of `separate`: ours and a peer's model of the same weights, in memory and on disk.

A maker runs in its own process and imports only what its side needs. `prepare` writes the files that both read.
"""

from __future__ import annotations

import copy
import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sepkit.inference import Separator
    from sepkit.models import EncoderMaskerDecoder

Call = Callable[[], Any]

MODELS = {
    "Conv-TasNet": "ConvTasNet",
    "DPRNN": "DPRNNTasNet",
    "SuDoRM-RF improved": "SuDORMRFImprovedNet",
    "SuDoRM-RF": "SuDORMRFNet",
}
"""Name -> asteroid's class."""

SEPFORMER = "SepFormer"
"""speechbrain's, of its WSJ0-2mix recipe."""

_WINDOW_SECONDS = 5

_SEPFORMER_YAML = """
sample_rate: 8000
num_spks: 2
Encoder: !new:speechbrain.lobes.models.dual_path.Encoder
  kernel_size: {kernel_size}
  out_channels: {channels}
block: !new:speechbrain.lobes.models.dual_path.SBTransformerBlock
  num_layers: {layers}
  d_model: {channels}
  nhead: 8
  d_ffn: {feed_forward}
  dropout: 0
  use_positional_encoding: true
  norm_before: true
MaskNet: !new:speechbrain.lobes.models.dual_path.Dual_Path_Model
  num_spks: 2
  in_channels: {channels}
  out_channels: {channels}
  num_layers: {repeats}
  K: {chunk}
  intra_model: !ref <block>
  inter_model: !ref <block>
  norm: ln
  linear_layer_after_inter_intra: false
  skip_around_intra: true
Decoder: !new:speechbrain.lobes.models.dual_path.Decoder
  in_channels: {channels}
  out_channels: 1
  kernel_size: {kernel_size}
  stride: {stride}
  bias: false
modules:
  encoder: !ref <Encoder>
  decoder: !ref <Decoder>
  masknet: !ref <MaskNet>
"""
_SEPFORMER_SIZES = {
    "kernel_size": 16,
    "stride": 8,
    "channels": 256,
    "layers": 8,
    "feed_forward": 1024,
    "repeats": 2,
    "chunk": 250,
}


# ------------------------------------------------------------------------------------------------------- preparation


def prepare(folder: Path, name: str, sizes: Mapping[str, int], seconds: float) -> str:
    """Write weights (model/) and the mixture (mixture.wav, mixture.npy); return a description of the mixture.

    `sizes` are arguments of the peer's class that differ from its own.
    """
    import torch

    from sepkit.data import audio
    from tools.bench.inputs import SAMPLE_RATE, two_voices

    torch.manual_seed(0)
    if name == SEPFORMER:
        _write_sepformer(folder / "model", {**_SEPFORMER_SIZES, **sizes})
    else:
        from asteroid import models

        (folder / "model").mkdir()
        torch.save(getattr(models, MODELS[name])(2, **sizes).serialize(), folder / "model" / "asteroid.pt")
    sources, kind = two_voices(seconds)
    np.save(folder / "mixture.npy", sources.sum(0))
    audio.write(folder / "mixture.wav", sources.sum(0), SAMPLE_RATE)
    return kind


def _write_sepformer(folder: Path, sizes: Mapping[str, int]) -> None:
    import torch

    folder.mkdir()
    (folder / "hyperparams.yaml").write_text(_SEPFORMER_YAML.format(**sizes), encoding="utf-8")
    for name, module in _sepformer_parts(sizes).items():
        torch.save(module.state_dict(), folder / f"{name}.ckpt")


def _sepformer_parts(sizes: Mapping[str, int]) -> dict[str, nn.Module]:
    from speechbrain.lobes.models import dual_path

    channels = sizes["channels"]
    block = dual_path.SBTransformerBlock(
        sizes["layers"],
        channels,
        8,
        sizes["feed_forward"],
        dropout=0,
        use_positional_encoding=True,
        norm_before=True,
    )
    masker = dual_path.Dual_Path_Model(
        channels,
        channels,
        block,
        copy.deepcopy(block),
        sizes["repeats"],
        "ln",
        K=sizes["chunk"],
        num_spks=2,
        linear_layer_after_inter_intra=False,
    )
    decoder = dual_path.Decoder(channels, 1, sizes["kernel_size"], sizes["stride"], bias=False)
    return {"encoder": dual_path.Encoder(sizes["kernel_size"], channels), "masknet": masker, "decoder": decoder}


# --------------------------------------------------------------------------------------------------------- in memory


def ours(folder: Path, name: str, low_precision: bool = False, raised: bool = False) -> Call:
    """Make a call that returns our model's estimates (2, T) of the mixture.

    Args:
        folder: see `prepare`.
        name: of the model.
        low_precision: whether in bfloat16, see `Separator`.
        raised: whether the allocator's thresholds are raised, as the `sepkit` command does.
    """
    import torch

    _raise_thresholds(raised)
    model, mixture = _our_model(folder, name), _mixture(folder)
    if low_precision:
        model = _separator(model, precision="bfloat16").model

    def call() -> Tensor:
        with torch.inference_mode():
            return model.estimates(mixture)[0]

    return call


def theirs(folder: Path, name: str, sizes: Mapping[str, int], double: bool = False) -> Call:
    """Make a call that returns the peer's estimates (2, T) of the mixture.

    Args:
        folder: see `prepare`.
        name: of the model.
        sizes: see `prepare`.
        double: in float64.
    """
    import torch

    dtype = torch.float64 if double else torch.float32
    mixture = _mixture(folder).to(dtype)
    if name == SEPFORMER:
        separate = _sepformer(folder / "model", {**_SEPFORMER_SIZES, **sizes}, dtype)
    else:
        model = asteroid_module(folder, name, sizes).to(dtype)
        separate = lambda mixture: model(mixture.unsqueeze(1))[0]  # noqa: E731

    def call() -> Tensor:
        with torch.inference_mode():
            return separate(mixture)

    return call


def _our_model(folder: Path, name: str) -> EncoderMaskerDecoder:
    from sepkit.models.bridges import from_asteroid, from_speechbrain

    return from_speechbrain(folder / "model") if name == SEPFORMER else from_asteroid(folder / "model" / "asteroid.pt")


def _separator(model: EncoderMaskerDecoder, **options: Any) -> Separator:
    from sepkit.inference import Separator
    from sepkit.inference.options import SeparatorOptions

    return Separator(model, options=SeparatorOptions(**options))


def asteroid_module(folder: Path, name: str, sizes: Mapping[str, int]) -> nn.Module:
    """Return asteroid's own model, in evaluation mode.

    Args:
        folder: see `prepare`.
        name: of the model.
        sizes: see `prepare`.
    """
    import torch
    from asteroid import models

    model = getattr(models, MODELS[name])(2, **sizes)
    # asteroid's own from_pretrained cannot read what it wrote on a current torch. The file is this line's own.
    checkpoint = torch.load(folder / "model" / "asteroid.pt", weights_only=False)
    model.load_state_dict(checkpoint["state_dict"])
    return model.eval()


def _sepformer(folder: Path, sizes: Mapping[str, int], dtype: Any) -> Callable[[Tensor], Tensor]:
    """As speechbrain's SepformerSeparation.separate_batch does, without its loading from hubs."""
    import torch
    from torch.nn.functional import pad

    parts = _sepformer_parts(sizes)
    for name, module in parts.items():
        module.load_state_dict(torch.load(folder / f"{name}.ckpt"))
        module.to(dtype).eval()

    def separate(mixture: Tensor) -> Tensor:
        encoded = parts["encoder"](mixture)
        masked = encoded * parts["masknet"](encoded)
        estimates = torch.stack([parts["decoder"](masked[k]) for k in range(2)], 1)[0]
        missing = mixture.shape[-1] - estimates.shape[-1]
        return pad(estimates, (0, missing)) if missing > 0 else estimates[:, : mixture.shape[-1]]

    return separate


def _mixture(folder: Path) -> Tensor:
    import torch

    return torch.from_numpy(np.load(folder / "mixture.npy"))[None]


def _raise_thresholds(raised: bool) -> None:
    if raised:
        from sepkit.cli._allocator import raise_thresholds

        raise_thresholds()


# ------------------------------------------------------------------------------------------------------ disk to disk


def ours_on_disk(folder: Path, name: str, chunk_seconds: float, whole_seconds: float, raised: bool = True) -> Call:
    """What `sepkit separate` does to the mixture: a wav for each speaker, in folder/ours.

    Args:
        folder: see `prepare`.
        name: of the model.
        chunk_seconds: of a chunk; neighbors share half of it.
        whole_seconds: what is separated as a whole.
        raised: whether the allocator's thresholds are raised, as the command does.
    """
    from sepkit.inference import separate_files

    _raise_thresholds(raised)
    separator = _separator(
        _our_model(folder, name),
        chunk_seconds=chunk_seconds,
        overlap_seconds=chunk_seconds / 2,
        whole_seconds=whole_seconds,
    )
    number = itertools.count()

    def call() -> None:
        out = folder / f"out{next(number)}"
        report = separate_files([folder / "mixture.wav"], separator, out)
        if report.failed or not report.separated:
            raise RuntimeError(f"{name}: {report}")
        shutil.rmtree(folder / "ours", ignore_errors=True)
        out.rename(folder / "ours")

    return call


def theirs_on_disk(folder: Path, name: str, sizes: Mapping[str, int], chunk_seconds: float) -> Call:
    """What asteroid's file_separate does to the mixture through its LambdaOverlapAdd: wavs in folder/theirs.

    Args:
        folder: see `prepare`.
        name: of the model.
        sizes: see `prepare`.
        chunk_seconds: of its window, a Hann window; the hop is half of it.
    """
    from asteroid.dsp.overlap_add import LambdaOverlapAdd
    from asteroid.separate import file_separate

    model = asteroid_module(folder, name, sizes)
    window = 2 * round(chunk_seconds * cast(float, model.sample_rate) / 2)
    joined: Any = LambdaOverlapAdd(model, 2, window, window // 2, window="hann").eval()
    (folder / "theirs").mkdir(exist_ok=True)
    return lambda: file_separate(
        joined, str(folder / "mixture.wav"), output_dir=str(folder / "theirs"), force_overwrite=True
    )


# ------------------------------------------------------------------------------------------------------------ checks


def largest_difference(expected: np.ndarray, found: np.ndarray) -> float:
    """Return max |a - b| / max |b| for the expected b."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def snr_db(expected: np.ndarray, found: np.ndarray) -> float:
    """Return the least signal-to-noise ratio of the estimates, 10 log10(||b||^2 / ||a - b||^2)."""
    noise = found.astype(np.float64) - expected
    return float(10 * np.log10((np.square(expected).sum(-1) / np.square(noise).sum(-1)).min()))


def likeness_db(expected: np.ndarray, folder: Path) -> float:
    """Return the lower SI-SDR of the two estimates in wavs of a folder to those of an array, in the better order."""
    from sepkit.data import audio
    from sepkit.evaluation.metrics import si_sdr_db

    found = np.stack([audio.read(path) for path in sorted(folder.rglob("*.wav"))])
    return max(float(np.min(si_sdr_db(found[order], expected))) for order in ([0, 1], [1, 0]))


def improvements_db(model: str, voices: np.ndarray, whole_seconds: float) -> dict[str, float]:
    """Return the mean SI-SDR improvement of a trained model on the sum of two sources.

    "one_order" takes the better order of the estimates throughout, "any_order" the better one of each window of 5 s. If
    a model or a stitcher swaps speakers, the first falls and the second does not.

    Args:
        model: see `sepkit.load_model`.
        voices: (2, T) at 8 kHz.
        whole_seconds: see `Separator`.
    """
    from sepkit.evaluation.metrics import si_sdr_db, si_sdri_db
    from sepkit.inference import load_model
    from tools.bench.inputs import SAMPLE_RATE

    def in_better_order(estimates: np.ndarray, voices: np.ndarray) -> np.ndarray:
        # A silent source has no score, and takes the remaining estimate.
        return max(
            (estimates, estimates[::-1]), key=lambda ordered: np.nan_to_num(si_sdr_db(ordered, voices), nan=0.0).sum()
        )

    separator = load_model(model, predict=False, whole_seconds=whole_seconds)
    mixture = voices.sum(0)
    estimates = separator.separate(mixture, SAMPLE_RATE).estimates
    cuts = range(_WINDOW_SECONDS * SAMPLE_RATE, len(mixture) - SAMPLE_RATE, _WINDOW_SECONDS * SAMPLE_RATE)
    windows = zip(np.split(estimates, cuts, -1), np.split(voices, cuts, -1), strict=True)
    orders = {
        "one_order": in_better_order(estimates, voices),
        "any_order": np.concatenate([in_better_order(*window) for window in windows], -1),
    }
    return {name: float(np.mean(si_sdri_db(ordered, voices, mixture))) for name, ordered in orders.items()}
