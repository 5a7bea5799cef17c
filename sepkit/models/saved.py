"""The base of models that checkpoints can hold, and the digest of their weights."""

import hashlib
from typing import Any, ClassVar

from torch import nn


class SavedModel(nn.Module):
    """A model that `save_model` writes and `load_checkpoint` reads.

    Attributes:
        kind: the name in `model.yaml`; commands refuse models of another kind.
        config_type: the dataclass of `config`.
        config: Configuration that `from_config` built the model from; None: a model assembled by hand.
        info: plain data saved beside the weights it was loaded with (epoch, `score_threshold` ...), may be empty.
    """

    kind: ClassVar[str]
    config_type: ClassVar[type]

    def __init__(self) -> None:
        super().__init__()
        self.config: Any = None
        self.info: dict[str, Any] = {}

    @classmethod
    def from_config(cls: Any, config: Any) -> Any:
        """Return a new model with random weights; it keeps its configuration."""
        return cls(config)

    def facts(self) -> dict[str, Any]:
        """Return plain data about the model for readers of `model.yaml`; loading does not need it."""
        return {}


def weights_fingerprint(model: nn.Module) -> str:
    """Return a hexadecimal digest of all weights and buffers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
