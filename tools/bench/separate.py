"""Separation: sepkit against asteroid (SepFormer: speechbrain) on the same weights and the same mixture."""

import itertools
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sepkit.parallel import available_processes
from tools.bench.measure import SAMPLE_RATE, Call, compare_apart, environment, measure_each, relative_gap, two_voices

TURNS = 5
TOLERANCE = 1e-5
"""Largest difference of estimates from those of the peer's module in float64, relative to the largest sample."""
LEAST_DB = {"bfloat16": 40.0, "chunked": 20.0}
"""Least ratio of the estimates to their distance from the same, in bfloat16, and in chunks of untrained weights."""
CHUNK_SECONDS = 10.0

ASTEROID = {
    "Conv-TasNet": "ConvTasNet",
    "DPRNN": "DPRNNTasNet",
    "SuDoRM-RF improved": "SuDORMRFImprovedNet",
    "SuDoRM-RF": "SuDORMRFNet",
}
"""Name -> class."""
SEPFORMER = "SepFormer"
"""speechbrain's, of its WSJ0-2mix recipe."""
# The literature's network of 2.6 million weights; asteroid's own default has 128 channels between paths.
_DPRNN_SIZES = {"bn_chan": 64}
_SEPFORMER_YAML = Path(__file__).with_name("sepformer.yaml")
_SEPFORMER_SIZES = {
    "kernel_size": 16, "stride": 8, "channels": 256, "layers": 8, "feed_forward": 1024, "repeats": 2, "chunk": 250,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A pair that is timed.

    Args:
        model: of `ASTEROID`, or `SEPFORMER`.
        seconds: of the mixture.
        threads: of torch; 0: all there are.
        way: "whole": the module on a tensor; "bfloat16": the same, ours in that precision; "chunked": from disk to disk
            in chunks, as `sepkit separate` and asteroid's file_separate do.
        sizes: arguments of the peer's class that differ from its own.
        turns: their number.
    """

    model: str
    seconds: float
    threads: int
    way: str = "whole"
    sizes: Mapping[str, int] = field(default_factory=dict)
    turns: int = TURNS

    @property
    def peer(self) -> str:
        """Name of the other side."""
        return "speechbrain" if self.model == SEPFORMER else "asteroid"

    @property
    def what(self) -> str:
        """Description of the row."""
        ways = {"whole": "", "bfloat16": ", bfloat16", "chunked": ", in chunks, disk to disk"}
        return f"{self.model}, {self.seconds:g} s{ways[self.way]}"


ROWS = (
    *(Row("Conv-TasNet", 4, threads, way) for way in ("whole", "bfloat16") for threads in (1, 0)),
    *(Row("DPRNN", 4, threads, way, _DPRNN_SIZES) for way in ("whole", "bfloat16") for threads in (1, 0)),
    *(Row(name, 4, threads) for name in ("SuDoRM-RF improved", "SuDoRM-RF") for threads in (1, 0)),
    Row(SEPFORMER, 4, 1),
    Row("Conv-TasNet", 60, 0),
    Row("DPRNN", 60, 0, sizes=_DPRNN_SIZES),
    Row("Conv-TasNet", 60, 0, "chunked"),
)


def run(unfinished: Path | None, rows: Sequence[Row] = ROWS) -> dict[str, Any]:
    """Measure times, real-time factors, peak memory and differences of pairs.

    Each side has its own process, and they are called in turns. Both run in evaluation mode without gradients. In
    chunks both go from a wav file to wav files, with windows of 10 s that begin every 5 s.

    Args:
        unfinished: folder of rows of interrupted calls; None: nothing is kept.
        rows: the pairs.

    Raises:
        RuntimeError: outputs that ought to be equal differ.
    """
    found = measure_each("separate", rows, _measured, unfinished)
    return {"rows": found, "environment": environment("asteroid", "speechbrain")}


def _measured(row: Row) -> dict[str, Any]:
    from sepkit.errors import UserError

    threads = row.threads or available_processes()
    record: dict[str, Any] = {"what": row.what, "peer": row.peer, "threads": threads}
    with tempfile.TemporaryDirectory(prefix="sepkit-bench-") as name:
        folder = Path(name)
        prepare(folder, row.model, row.sizes, row.seconds)
        try:
            times, found = compare_apart(_sides(row, folder), threads, row.turns, row.seconds)
        except UserError as error:
            return record | {"left_out": str(error)}
        checked = _checked(row, theirs(folder, row.model, row.sizes, double=True)().numpy(), found["ours"])
    return record | times | checked


def _checked(row: Row, expected: np.ndarray, found: np.ndarray) -> dict[str, Any]:
    from sepkit.evaluation.metrics import si_sdr_db

    if row.way == "whole":
        difference, unit = relative_gap(expected, found), "of the peak"
        passes = difference <= TOLERANCE
    elif row.way == "bfloat16":
        noise = np.square(found.astype(np.float64) - expected).sum(-1)
        difference, unit = float(10 * np.log10(np.square(expected).sum(-1) / noise).min()), "dB SNR to float64"
        passes = difference >= LEAST_DB[row.way]
    else:
        # Files are written at the mixture's level.
        difference, unit = float(np.min(si_sdr_db(found, expected))), "dB SI-SDR to float64"
        passes = difference >= LEAST_DB[row.way]
    if not passes:
        raise RuntimeError(f"{row.what}: found a difference of {difference:.2g} {unit} between ours and the peer")
    return {"difference": difference, "unit": unit}


def _sides(row: Row, folder: Path) -> list[tuple[Any, ...]]:
    """Return maker and arguments of ours and theirs."""
    here = f"{__name__}:"
    if row.way == "chunked":
        chunk = min(CHUNK_SECONDS, row.seconds / 3)
        return [(f"{here}ours_on_disk", folder, chunk), (f"{here}theirs_on_disk", folder, row.model, row.sizes, chunk)]
    return [(f"{here}ours", folder, row.model, row.way == "bfloat16"), (f"{here}theirs", folder, row.model, row.sizes)]


# ------------------------------------------------------------------------------------------------------- the makers


def prepare(folder: Path, name: str, sizes: Mapping[str, int], seconds: float) -> None:
    """Write weights (model/) and the mixture (mixture.wav, mixture.npy), which both sides read.

    Args:
        folder: that is there.
        name: of the model.
        sizes: arguments of the peer's class that differ from its own.
        seconds: of the mixture.
    """
    from sepkit.data import audio

    torch.manual_seed(0)
    (folder / "model").mkdir()
    if name == SEPFORMER:
        text = _SEPFORMER_YAML.read_text("utf-8").format(**{**_SEPFORMER_SIZES, **sizes})
        (folder / "model" / "hyperparams.yaml").write_text(text, "utf-8")
        for part, module in _sepformer(folder / "model")["modules"].items():
            torch.save(module.state_dict(), folder / "model" / f"{part}.ckpt")
    else:
        from asteroid import models

        torch.save(getattr(models, ASTEROID[name])(2, **sizes).serialize(), folder / "model" / "asteroid.pt")
    mixture = two_voices(seconds).sum(0)
    np.save(folder / "mixture.npy", mixture)
    audio.write(folder / "mixture.wav", mixture, SAMPLE_RATE)


def ours(folder: Path, name: str, low_precision: bool = False) -> Call:
    """Make a call that returns our model's estimates (2, T) of the mixture.

    Args:
        folder: see `prepare`.
        name: of the model.
        low_precision: whether in bfloat16, see `Separator`.
    """
    from sepkit.inference import Separator

    model, mixture = _our_model(folder, name), mixture_of(folder)
    if low_precision:
        model = Separator(model, precision="bfloat16").model
    return torch.inference_mode()(lambda: model.estimates(mixture)[0])


def theirs(folder: Path, name: str, sizes: Mapping[str, int], double: bool = False) -> Call:
    """Make a call that returns the peer's estimates (2, T) of the mixture.

    Args:
        folder: see `prepare`.
        name: of the model.
        sizes: see `prepare`.
        double: in float64.
    """
    dtype = torch.float64 if double else torch.float32
    mixture = mixture_of(folder).to(dtype)
    if name == SEPFORMER:
        from speechbrain.inference.separation import SepformerSeparation

        found = _sepformer(folder / "model")
        for part, module in found["modules"].items():
            module.load_state_dict(torch.load(folder / "model" / f"{part}.ckpt"))
        sepformer = SepformerSeparation(found["modules"], found).to(dtype)
        return torch.inference_mode()(lambda: sepformer.separate_batch(mixture)[0].T)
    model = asteroid_module(folder, name, sizes).to(dtype)
    return torch.inference_mode()(lambda: model(mixture)[0])


def ours_on_disk(folder: Path, chunk_seconds: float) -> Call:
    """Make a call that separates the mixture as `sepkit separate` does, and returns what the wavs hold.

    Args:
        folder: see `prepare`.
        chunk_seconds: of a chunk; neighbors share half of it.
    """
    from sepkit.inference import Separator, separate_files

    model = _our_model(folder, "Conv-TasNet")
    separator = Separator(model, chunk_seconds=chunk_seconds, overlap_seconds=chunk_seconds / 2, whole_seconds=0.0)
    number = itertools.count()

    def call() -> Tensor:
        out = folder / f"out{next(number)}"
        report = separate_files([folder / "mixture.wav"], separator, out)
        if report.failed or not report.separated:
            raise RuntimeError(f"in chunks: {report}")
        shutil.rmtree(folder / "ours", ignore_errors=True)
        return _written(out.rename(folder / "ours"))

    return call


def theirs_on_disk(folder: Path, name: str, sizes: Mapping[str, int], chunk_seconds: float) -> Call:
    """Make a call that separates the mixture as asteroid's file_separate does through its LambdaOverlapAdd.

    Args:
        folder: see `prepare`.
        name: of the model.
        sizes: see `prepare`.
        chunk_seconds: of its window, a Hann window; the hop is half of it.
    """
    from asteroid.dsp.overlap_add import LambdaOverlapAdd
    from asteroid.separate import file_separate

    window = 2 * round(chunk_seconds * SAMPLE_RATE / 2)
    module: Any = asteroid_module(folder, name, sizes)
    joined: Any = LambdaOverlapAdd(module, 2, window, window // 2, window="hann").eval()
    (folder / "theirs").mkdir(exist_ok=True)

    def call() -> Tensor:
        file_separate(joined, str(folder / "mixture.wav"), output_dir=str(folder / "theirs"), force_overwrite=True)
        return _written(folder / "theirs")

    return call


def _written(folder: Path) -> Tensor:
    from sepkit.data import audio

    return torch.from_numpy(np.stack([audio.read(path) for path in sorted(folder.rglob("*.wav"))]))


def _our_model(folder: Path, name: str) -> Any:
    from sepkit.models.bridges import from_asteroid, from_speechbrain

    return from_speechbrain(folder / "model") if name == SEPFORMER else from_asteroid(folder / "model" / "asteroid.pt")


def asteroid_module(folder: Path, name: str, sizes: Mapping[str, int]) -> nn.Module:
    """Return asteroid's own model, in evaluation mode.

    Args:
        folder: see `prepare`.
        name: of the model.
        sizes: see `prepare`.
    """
    from asteroid import models

    model = getattr(models, ASTEROID[name])(2, **sizes)
    # asteroid's own from_pretrained cannot read what it wrote on a current torch.
    model.load_state_dict(torch.load(folder / "model" / "asteroid.pt", weights_only=False)["state_dict"])
    return model.eval()


def _sepformer(folder: Path) -> Mapping[str, Any]:
    """Return what hyperparams.yaml describes, with new weights."""
    from hyperpyyaml import load_hyperpyyaml

    return load_hyperpyyaml((folder / "hyperparams.yaml").read_text("utf-8"))


def mixture_of(folder: Path) -> Tensor:
    """Return the mixture that `prepare` wrote, (1, T)."""
    return torch.from_numpy(np.load(folder / "mixture.npy"))[None]
