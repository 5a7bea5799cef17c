"""Digests that tell weights apart."""

from __future__ import annotations

import hashlib

import torch


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return a hexadecimal digest of all weights and buffers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
