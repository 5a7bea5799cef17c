"""Training and test data: audio files, manifests, mixing, datasets."""
