"""The bound on the evidence of images by number of steps, on one path: gain of finer, loss of coarser steps."""

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sepkit.errors import Bounds
from sepkit.evaluation.labels import BY_DEPTH
from sepkit.evaluation.results import commit, hardware
from sepkit.evaluation.statistics import paired_difference, summarize_columns
from sepkit.extras import is_installed
from sepkit.files import write_csv, write_json
from sepkit.inference.runners.torch_runner import device_of
from sepkit.models import load_checkpoint
from sepkit.models.storage.folders import find_checkpoint
from sepkit.reporting.tables import Table
from sepkit.studies.cdvae.data import ImageSet, read_images
from sepkit.studies.cdvae.model import ImageVAE, Noise, Source
from sepkit.studies.cdvae.task import bound_of, parts_of
from sepkit.version import __version__

_AT_ONCE = 200
_COLUMNS = 12
_ROWS: tuple[tuple[str, Source, bool], ...] = (
    ("reconstructions", "posterior", False),
    ("samples of the likelihood given the image's latents", "posterior", True),
    ("only the first state from the image", "top", False),
    ("samples of the prior", "prior", False),
)
FIXED = "fixed"
"""Key of a model whose depth cannot be chosen."""


def evaluate(
    *, model: str, manifest: str, out: str, depth_steps: list[int] | None = None, samples: int = 3, device: str = "auto"
) -> Path:
    """Measure the bound on the evidence of images, by number of depth steps.

    Args:
        model: MODEL that `sepkit train --config cdvae` wrote
        manifest: images, test.npz for example
        out: folder for summary.json, utterances.csv and figures
        depth_steps: steps of each level (default: the model's own)
        samples: number of samples of the latents that bounds are averaged over
    """
    command = shlex.join(["sepkit", *sys.argv[1:]])
    folder, place = find_checkpoint(model), str(device_of(device))
    summary = evaluate_images(folder, manifest, out, depth_steps, samples, device=place, command=command)
    print("\n".join(report_lines(summary)))
    return Path(out)


def evaluate_images(
    model: str | Path,
    manifest: str | Path,
    out: str | Path,
    chosen_steps: Sequence[int] | None = None,
    samples: int = 3,
    seed: int = 0,
    device: str = "cpu",
    command: str | None = None,
) -> dict[str, Any]:
    """Measure minus the evidence lower bound of images, its parts, and an importance-weighted bound, and return them.

    Every image has the same paths at every number of steps, refined, so that differences between steps are paired. Of
    an ODE-like model the sum of distortion and initial rate is reported, which is no bound.

    Args:
        model: Folder of a model.
        manifest: File of images that `sepkit prepare images` wrote.
        out: Folder for summary.json, utterances.csv, which has the numbers of every image, and images.png, a sheet of
            reconstructions and samples.
        chosen_steps: Numbers of steps of each level; None: the model's own.
        samples: Number of samples of the latents, which bounds are means over.
        seed: Seed of the latent noise.
        device: Device that computes.
        command: Command line, for the summary.

    Raises:
        UserError: no sample.
        ValueError: a bound that is not finite; names the number of steps.
    """
    Bounds(ge=1).check("--samples", samples)
    began, loaded = time.perf_counter(), load_checkpoint(model, of=ImageVAE).to(device)
    config = loaded.config
    images = read_images(manifest, config.size, config.likelihood == "bernoulli")
    own = loaded.steps
    wanted = [own] if chosen_steps is None else sorted(set(chosen_steps))
    for steps in wanted:
        loaded.set_steps(steps)  # refused before any work
    found = _measure(loaded, images, wanted, samples, seed, device)
    reference = own if own in wanted else wanted[len(wanted) // 2]
    by_steps = {steps: _summary(found[steps], found[reference], images.floor_nats) for steps in wanted}
    summary = {
        "metrics": by_steps[reference]["metrics"],
        BY_DEPTH: {str(steps or FIXED): values for steps, values in by_steps.items()},
        "reference_steps": reference,
        "trained_steps": own,
        "floor_nats": images.floor_nats,
        "bound": not config.ode_like,
        "diffusions": [float(diffusion.raw.detach().exp()) for diffusion in loaded.diffusions()],
        "n_images": len(images),
        # As summaries of mixtures have it, so that reports show these too.
        "n_utterances": len(images),
        "n_skipped": 0,
        "skipped": [],
        "samples": samples,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in loaded.parameters()),
        "model": str(model),
        "manifest": [str(manifest)],
        "wall_seconds": time.perf_counter() - began,
        "command": command,
        "version": __version__,
        "commit": commit(),
        "hardware": hardware(device),
    }
    folder = Path(out)
    rows = zip(*(map(float, values) for values in found[reference].values()), strict=True)
    numbered = ((str(manifest), place, *values) for place, values in enumerate(rows))
    write_csv(folder / "utterances.csv", ["manifest", "id", *found[reference]], numbered)
    if is_installed("matplotlib"):
        loaded.set_steps(reference)
        write_sheet(loaded.cpu(), images, folder / "images.png")
    write_json(folder / "summary.json", summary)
    return summary


@torch.inference_mode()
def _measure(
    model: ImageVAE, images: ImageSet, wanted: Sequence[int | None], samples: int, seed: int, device: str
) -> dict[int | None, dict[str, np.ndarray]]:
    """Return steps -> name -> (N,) values, means over samples."""
    found: dict[int | None, dict[str, list[Tensor]]] = {steps: {} for steps in wanted}
    starts = range(0, len(images), _AT_ONCE)
    seed_of = lambda start, sample: (seed * 1_000_003 + start) * 1_000_003 + sample  # noqa: E731
    for start in tqdm(starts, desc="evaluate", unit="batch", disable=None):
        batch = torch.from_numpy(images.images[start : start + _AT_ONCE, None]).to(device)
        noises = [Noise(torch.Generator(device).manual_seed(seed_of(start, place))) for place in range(samples)]
        for steps in wanted:
            model.set_steps(steps)
            drawn = [model(batch, noise) for noise in noises]
            parts = [parts_of(one) for one in drawn]
            columns = {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}
            bound = bound_of(columns, model.config.ode_like)
            if not all(bool(values.isfinite().all()) for values in bound.values()):
                raise ValueError(f"at {steps or 'fixed'} steps: the bound of an image is not finite")
            columns = bound | columns
            if not model.config.ode_like:
                weights = torch.stack([one.log_weight for one in drawn]).double()
                columns["importance_bound_nats"] = np.log(samples) - torch.logsumexp(weights, 0)
            for column, values in columns.items():
                found[steps].setdefault(column, []).append(values.double().cpu())
    return {steps: {name: torch.cat(own).numpy() for name, own in columns.items()} for steps, columns in found.items()}


def _summary(columns: dict[str, np.ndarray], reference: dict[str, np.ndarray], floor: float | None) -> dict[str, Any]:
    metrics = {name: asdict(found) for name, found in summarize_columns(columns).items()}
    first = next(iter(columns))
    over = paired_difference(columns[first], reference[first])
    above = None if floor is None else float(columns[first].mean()) - floor
    return {"metrics": metrics, "over_reference_nats": {"mean": over.mean, "ci95": over.ci95}, "over_floor_nats": above}


@torch.inference_mode()
def write_sheet(model: ImageVAE, images: ImageSet, path: Path, seed: int = 0) -> Path:
    """Write rows of images, reconstructions, images that share their first state, and prior samples; return the path.

    Images without noise come first, if they are known. Images shown are evenly spaced, since sets may be sorted.

    Args:
        model: The model, on the CPU.
        images: Images.
        path: PNG file.
        seed: Seed of the latents.

    Source: thesis, part C, figures 6 and 8.
    """
    from matplotlib.figure import Figure

    from sepkit.reporting.figures import save_figure

    places = np.unique(np.linspace(0, len(images) - 1, _COLUMNS).round().astype(int))
    shown = torch.from_numpy(images.images[places, None])
    rows = {} if images.solutions is None else {"solutions without noise": images.solutions[:_COLUMNS]}
    rows["images"] = shown[:, 0].numpy()
    for name, source, drawn in _ROWS:
        noise = Noise(torch.Generator().manual_seed(seed))
        rows[name] = model.sample(shown, len(shown), source, noise, drawn)[:, 0].numpy()
    figure = Figure(figsize=(_COLUMNS * 0.8, len(rows) * 1.05), layout="constrained")
    low, high = float(shown.min()), float(shown.max())
    for axes, (name, row) in zip(figure.subplots(len(rows), squeeze=False)[:, 0], rows.items(), strict=True):
        gaps = np.pad(row, ((0, len(shown) - len(row)), (0, 0), (0, 1)), constant_values=np.nan)
        axes.imshow(np.concatenate(gaps, axis=1), cmap="gray", vmin=low, vmax=high)
        axes.set_title(name, fontsize=8, loc="left")
        axes.set_axis_off()
    return save_figure(figure, path)


def report_lines(summary: dict[str, Any]) -> list[str]:
    """Return a table to print: a row per number of steps."""
    names = list(next(iter(summary[BY_DEPTH].values()))["metrics"])
    header = ["steps", *(name.removesuffix("_nats").replace("_", " ") for name in names), "over reference (95 %)"]
    rows = []
    for steps, values in summary[BY_DEPTH].items():
        over = values["over_reference_nats"]
        text = f"{over['mean']:+.2f}" + (" [{:+.2f}, {:+.2f}]".format(*over["ci95"]) if over["ci95"] else "")
        rows.append([steps, *(f"{values['metrics'][name]['mean']:.2f}" for name in names), text])
    lines = Table(header, rows).lines()
    if summary["floor_nats"] is not None:
        lines.append(f"floor: {summary['floor_nats']:.2f} nats")
    if not summary["bound"]:
        lines.append("the sum of distortion and initial rate of an ODE-like model is no bound on the evidence")
    return [*lines, "all in nats an image"]
