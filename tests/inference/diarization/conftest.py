"""Recordings of noise-like voices, and an encoder that tells them apart."""

from tests.noise_voices import encoder, meeting, voices  # noqa: F401
