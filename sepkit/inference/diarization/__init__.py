"""Diarization: segments of speech, their speaker embeddings, counts and clusters."""
