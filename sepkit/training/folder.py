"""An experiment folder while a run is under way: its configuration, one process at a time, whole states."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from sepkit import files
from sepkit.choices import from_dict, to_dict
from sepkit.config import TaskConfig
from sepkit.errors import UserError, one_line
from sepkit.files import atomic_output, file_digest, file_text, read_yaml, write_text
from sepkit.training.messages import is_first_process, say
from sepkit.training.position import Position

_DIGEST = re.compile(r"^# SHA-256 of data\.(train|dev) when training began: ([0-9a-f]{64})$", re.MULTILINE)


def resume_file(out: Path) -> Path:
    """Return where the state of a run is kept."""
    return out / "resume" / "last.ckpt"


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """While the block runs, no other process of this machine trains in the folder; ranks of one run share it."""
    if not is_first_process():
        yield
        return
    from filelock import Timeout

    try:
        with files.locked(resume_file(out).with_name(".lock"), timeout=0):
            yield
    except Timeout as error:
        raise UserError(
            f"{out}: another process trains in this folder; wait until it ends, or give another --out"
        ) from error
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UserError(f"{out}: cannot be written to ({error.strerror}); give an output folder that can") from error


def write_config(config: TaskConfig, out: Path) -> None:
    """Write `config.yaml`; the digests of the manifests that the run began with stand in it as comments."""
    import yaml

    file = out / "config.yaml"
    began = _digests(file) if resume_file(out).is_file() else {}
    lines = [
        f"# SHA-256 of data.{name} when training began: {digest}\n"
        for name, digest in (_digests_now(config) | began).items()
    ]
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    write_text(file, text + "".join(lines))


def read_first_config(out: Path) -> TaskConfig:
    """Return the configuration that the run in a folder began with."""
    file = out / "config.yaml"
    remedy = f"get it back, or take a new --out (--init-from {out / 'last_model'} starts from its weights)"
    data = read_yaml(file, remedy)
    try:
        # What a later sepkit has added stands at its default in older runs.
        return from_dict(TaskConfig, data)
    except UserError as error:
        raise UserError(f"{file}: {error}; {remedy}") from error


def warn_of_changed_manifests(config: TaskConfig, out: Path) -> None:
    """Say if a manifest is not the one that the run began with: from here on epochs are others."""
    began = _digests(out / "config.yaml")
    for name, digest in _digests_now(config).items():
        if began.get(name, digest) != digest:
            say(
                f"warning: data.{name}: {getattr(config.data, name)} has other mixtures than when this training began; "
                "put the old one back for the same run, or take a new --out"
            )


def check_state(file: Path) -> None:
    """Check that a state of a run is whole, before it is loaded."""
    try:
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip()
        reason = f"{broken} in it is" if broken else ""
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
        reason = one_line(str(error))
    if reason:
        raise UserError(f"{file}: damaged ({reason}), expected the state of a run; remove it to begin anew")


def saved_position(file: Path) -> Position:
    """Return the position that a state of a run was saved at; the next epoch's beginning, if its epoch is complete."""
    position = Position(**torch.load(file, map_location="cpu", mmap=True, weights_only=True)["position"])
    position.enter_epoch()
    return position


class DurableStates(TorchCheckpointIO):
    """Writes states beside their final name, as a whole and onto the disk, without the system's temporary folder."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a state, so that it is whole even after a power cut."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        with atomic_output(path, durable=True) as temporary:
            temporary.write_bytes(buffer.getbuffer())


def _digests_now(config: TaskConfig) -> dict[str, str]:
    paths = {name: getattr(config.data, name, None) for name in ("train", "dev")}
    return {name: file_digest(path) for name, path in paths.items() if path and Path(path).is_file()}


def _digests(file: Path) -> dict[str, str]:
    try:
        return dict(_DIGEST.findall(file_text(file)))
    except (OSError, ValueError):
        return {}
