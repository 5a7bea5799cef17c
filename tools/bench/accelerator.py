"""Training steps on a GPU: sepkit against asteroid and speechbrain, by precision, compiled or not.

`python -m tools.bench.accelerator` writes results/accelerator.json. It needs torch and sepkit's models; rows of a peer
that is not installed say so. `--rehearse` runs the same code on the processor at tiny sizes.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.models.published.facts import multiply_adds
from tools.bench import pairs
from tools.bench.pairs import Sizes
from tools.bench.timing import Ratio, environment, take_turns

SAMPLE_RATE = 8000
RESULTS = Path(__file__).parent / "results" / "accelerator.json"
PRECISIONS = ("fp32", "tf32", "bf16")
# Cost of a whole step in forward passes: the backward pass computes gradients of inputs and of weights.
_FORWARDS_A_STEP = 3

FULL = Sizes("cuda", 4, 3 * SAMPLE_RATE, 5.0, 7, 8192, 50, False)
REHEARSAL = Sizes("cpu", 2, 800, 0.0, 1, 128, 2, True)


def missing() -> str | None:
    """Return what this machine lacks for the line, or None."""
    return None if torch.cuda.is_available() else "there is no CUDA device here"


def run(sizes: Sizes = FULL) -> dict[str, Any]:
    """Return rows of all models in all precisions, eager and compiled.

    Times are those of whole steps (forward, loss, backward, clipping, fused Adam) in turns with the peer's, which uses
    Adam as its recipes do. Shares are of the rate of a product of large matrices on the same device in the same
    precision, by the multiply-adds of three forward passes.
    """
    warnings.simplefilter("ignore")
    peaks = {precision: _peak_gflops(precision, sizes) for precision in PRECISIONS}
    rows = []
    for name in pairs.MODELS:
        operations = _operations(name, sizes)
        for precision in PRECISIONS:
            for compiled in (False, True):
                row = {"what": f"{name}, {precision}{', compiled' * compiled}", "peer": pairs.MODELS[name].peer}
                try:
                    row |= _row(name, precision, compiled, sizes, operations / (1e9 * peaks[precision]))
                except ImportError as error:
                    row["left_out"] = " ".join(str(error).split())
                print(row["what"], row.get("samples_per_second", row.get("left_out")), flush=True)
                rows.append(row)
    device = torch.cuda.get_device_name() if sizes.device == "cuda" else "no accelerator: a rehearsal"
    return {
        "batch": sizes.batch,
        "num_samples": sizes.num_samples,
        "rehearsal": sizes.tiny,
        "matmul_gflops": peaks,
        "data_loading": _loading_share(sizes),
        "rows": rows,
        "environment": environment("asteroid", "speechbrain") | {"device": device},
    }


def _row(name: str, precision: str, compiled: bool, sizes: Sizes, peak_seconds: float) -> dict[str, Any]:
    """Time one pair; leave the peer out if it is not installed or does not compile.

    `peak_seconds` is the time of a step at the peak rate.
    """
    known = pairs.MODELS[name]
    # Otherwise code compiled for other rows counts as recompilation.
    torch.compiler.reset()
    with _products(precision):
        pair, remark = None, ""
        try:
            pair = pairs.theirs(name, sizes)
        except ImportError as error:
            remark = f"{known.peer} is not installed ({error.name})"
        model, loss = pairs.ours(name, sizes, pair[0] if pair else None)
        sides = {"ours": _Step(model, loss, sizes, precision, compiled, fused=True)}
        memory = {"ours": _first_steps(sides["ours"])}
        if pair is not None:
            theirs = _Step(*pair, sizes, precision, compiled, fused=False)
            try:
                memory["theirs"] = _first_steps(theirs)
                sides["theirs"] = theirs
            except Exception as error:
                if not compiled:
                    raise
                remark = f"{known.peer} does not compile: {type(error).__name__}"
        times = take_turns(sides, sizes.seconds, sizes.least_turns)
    median = {who: sorted(values)[len(values) // 2] for who, values in times.items()}
    row: dict[str, Any] = {
        "precision": precision,
        "compiled": compiled,
        "step_seconds": median,
        "samples_per_second": {who: sizes.batch / seconds for who, seconds in median.items()},
        "share_of_peak": {who: peak_seconds / seconds for who, seconds in median.items()},
        "first_losses": {who: step.first_loss for who, step in sides.items()},
        "turns": len(times["ours"]),
    }
    if sizes.device == "cuda":
        row["peak_memory_mb"] = memory
    if "theirs" in times:
        row |= {
            "ratio": asdict(Ratio.of(times["ours"], times["theirs"])),
            "least_ratio": known.least_ratio,
        }
    return row | ({"remark": remark} if remark else {})


class _Step:
    """One step on one batch. Calling it waits for the device and returns the loss.

    Args:
        model: maps a mixture to estimates, or to another input of the loss.
        loss: (output of the model, sources) -> scalar.
        sizes: of the batch.
        precision: of the model; the loss is in float32.
        compiled: whether the model is compiled.
        fused: whether Adam is one kernel.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Tensor], Tensor],
        sizes: Sizes,
        precision: str,
        compiled: bool,
        fused: bool,
    ) -> None:
        self.model = model.to(sizes.device).train()
        # A rehearsal has no time for the compiler; tracing is the same.
        self._forward = torch.compile(self.model, backend="eager" if sizes.tiny else "inductor") if compiled else model
        self._loss = loss
        self._autocast = precision == "bf16"
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=fused)
        generator = torch.Generator().manual_seed(1)
        sources = torch.randn(sizes.batch, 2, sizes.num_samples, generator=generator)
        self.sources = sources.to(sizes.device)
        self.mixture = self.sources.sum(1)
        self.first_loss: float | None = None

    def __call__(self) -> float:
        return self.on(self.mixture, self.sources)

    def on(self, mixture: Tensor, sources: Tensor) -> float:
        """Take a step on any batch."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(mixture.device.type, torch.bfloat16, enabled=self._autocast):
            output = self._forward(mixture)
        loss = self._loss(output, sources)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self._optimizer.step()
        value = float(loss.detach())
        self.first_loss = value if self.first_loss is None else self.first_loss
        return value


def _first_steps(step: _Step) -> float:
    """Compile and warm up; return the peak MB allocated on the device, models and batches included."""
    if step.mixture.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    return torch.cuda.max_memory_allocated() / 2**20 if step.mixture.is_cuda else 0.0


# --------------------------------------------------------------------------------------------- peaks and data loading


@contextlib.contextmanager
def _products(precision: str) -> Iterator[None]:
    """Use TF32 in all products for tf32, and in none for other precisions."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _peak_gflops(precision: str, sizes: Sizes) -> float:
    """Return the rate of a product of large matrices in 1e9 operations a second (a multiply-add is two), best of 20."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = torch.randn(2, sizes.matrix, sizes.matrix, device=sizes.device).to(dtype)
    least = float("inf")
    with _products(precision):
        for _ in range(20):
            _wait(sizes)
            began = time.perf_counter()
            torch.mm(a, b)
            _wait(sizes)
            least = min(least, time.perf_counter() - began)
    return 2e-9 * sizes.matrix**3 / least


def _wait(sizes: Sizes) -> None:
    if sizes.device == "cuda":
        torch.cuda.synchronize()


def _operations(name: str, sizes: Sizes) -> float:
    """Count the operations of a step on the batch: those of the modules as written, on the processor."""
    try:
        model, _ = pairs.ours(name, sizes, None)
    except Exception as error:
        # Without speechbrain there is no SepFormer, and its rows say so.
        print(f"{name}: operations not counted, {error}", flush=True)
        return float("nan")
    for module in model.modules():
        # A hook makes maskers use their modules.
        module.register_forward_hook(lambda *_: None)
    with torch.no_grad():
        model.eval()
        one = multiply_adds(lambda: model(torch.randn(1, sizes.num_samples)))
    return 2.0 * one * sizes.batch * _FORWARDS_A_STEP


def _loading_share(sizes: Sizes) -> dict[str, Any]:
    """Measure the share of time that steps wait for batches of WAV files, pinned and fetched ahead by two workers."""
    try:
        from torch.utils.data import DataLoader

        from sepkit.data.dataset import MixtureDataset, collate
        from sepkit.training.synthetic import write_synthetic_set
    except ImportError as error:
        return {"left_out": f"{error.name} is not installed"}
    step = _Step(*pairs.ours("Conv-TasNet", sizes, None), sizes, "fp32", False, fused=True)
    step()
    duration = sizes.num_samples / SAMPLE_RATE
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_synthetic_set(
            Path(folder), sample_rate=SAMPLE_RATE, sources=2, mixtures=sizes.batch * sizes.steps, seconds=duration
        )
        data = MixtureDataset(manifest, segment_seconds=duration, sample_rate=SAMPLE_RATE)
        loader = DataLoader(
            data,
            sampler=[(0, index) for index in range(len(data))],  # type: ignore[arg-type]
            batch_size=sizes.batch,
            collate_fn=collate,
            num_workers=0 if sizes.tiny else 2,
            pin_memory=sizes.device == "cuda",
        )
        batches = iter(loader)
        waited, began = 0.0, None
        for _ in range(sizes.steps):
            asked = time.perf_counter()
            batch = next(batches).to(torch.device(sizes.device), non_blocking=True)
            # The first batch waits for the workers to start.
            if began is None:
                began = time.perf_counter()
            else:
                waited += time.perf_counter() - asked
            step.on(batch.mixture, batch.sources)
        assert began is not None
        return {"share": waited / (time.perf_counter() - began), "model": "Conv-TasNet"}


def main(arguments: list[str]) -> int:
    """Return the exit code: 0, or 2 for another argument than --rehearse, or without a device."""
    if arguments not in ([], ["--rehearse"]):
        print(f"{' '.join(arguments)}: unknown, expected --rehearse or nothing", file=sys.stderr)
        return 2
    reason = None if arguments else missing()
    if reason is not None:
        print(f"accelerator: left out, {reason}; --rehearse goes through it on the processor", file=sys.stderr)
        return 2
    result = run(REHEARSAL if arguments else FULL)
    if arguments:
        # The figures of a rehearsal mean nothing, so they are shown but not kept.
        print(json.dumps(result, indent=1))
        return 0
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(RESULTS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
