"""Who speaks when: segments of speech, their speaker embeddings, counts and clusters."""
