"""What models learn from: audio files, manifests, mixing, datasets."""
