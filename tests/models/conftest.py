"""The same random numbers in every test of models, and a hub of one folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sepkit.models import build_model
from tests.tiny_models import RECURRENT


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def model() -> Any:
    """A tiny recurrent model with statistics of its training signals."""
    model = build_model(RECURRENT).eval()
    model.set_signal_statistics(0.01, 0.07)
    return model


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], dict[str, Any]]:
    """Let the hub give a folder, whatever is asked for; return what is asked."""

    def serve(folder: Path) -> dict[str, Any]:
        asked: dict[str, Any] = {}

        def download(name: str, **options: Any) -> str:
            asked.update(options, name=name)
            return str(folder)

        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        return asked

    return serve
