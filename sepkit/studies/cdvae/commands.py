"""What `sepkit evaluate` does with a model of images."""

from __future__ import annotations

from pathlib import Path


def evaluate(
    *, model: str, manifest: str, out: str, depth_steps: list[int] | None = None, samples: int = 3, device: str = "auto"
) -> Path:
    """Measure the bound on the evidence of images, by number of depth steps.

    Args:
        model: MODEL that `sepkit train --config cdvae` wrote
        manifest: images, test.npz for example
        out: folder for summary.json, utterances.csv and figures
        depth_steps: steps of each level; default: the model's own
        samples: of the latents, which bounds are means over
    """
    import shlex
    import sys

    from sepkit.inference.runners.torch_runner import device_of
    from sepkit.models.storage.folders import find_checkpoint
    from sepkit.studies.cdvae.evaluate import evaluate_images, report_lines

    command = shlex.join(["sepkit", *sys.argv[1:]])
    folder, place = find_checkpoint(model), str(device_of(device))
    summary = evaluate_images(folder, manifest, out, depth_steps, samples, device=place, command=command)
    print("\n".join(report_lines(summary)))
    return Path(out)
