"""`smoke`: train, validate, save and resume a configuration in seconds, on a small scale."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import replace
from pathlib import Path

from sepkit.config import TaskConfig
from sepkit.models import load_checkpoint
from sepkit.training.run import task_type, train

STEPS = 2


def smoke(config: TaskConfig) -> str:
    """Try a configuration and return a line that says what passed.

    It runs two training steps, a validation, a save, a resume of the same again, and a load. Batches are cut to 2
    examples on one device; model, objective, optimizer and precision are the configuration's own. Without `data.train`
    a separator gets a small set of tones. Everything is written to a temporary folder.

    Raises:
        RuntimeError: the saved model does not work.
    """
    task = task_type(config)
    with tempfile.TemporaryDirectory(prefix="sepkit-smoke-") as folder:
        small = task.shrink(copy.deepcopy(config), Path(folder))
        small.data.workers = 0
        own = dict(max_minutes=None, devices=1, num_nodes=1, sync_batchnorm=False)
        limit = STEPS * small.trainer.accumulate_batches
        first = 1 if small.trainer.growth is None else 2
        for epochs in (first, first + 1):
            small.trainer = replace(small.trainer, max_epochs=epochs, **own)
            model = train(small, Path(folder, "exp"), limit_batches=limit)
        task.try_out(load_checkpoint(model, of=task.model_type))
    masker = getattr(config.model, "masker", None)
    name = config.name if masker is None else masker.name
    return f"passed: {STEPS} steps, a validation, a save, a resume and a load ({name})"
