"""How a corpus becomes manifests: one module a corpus, each a function that writes `train.jsonl`, `dev.jsonl`, `test.jsonl`."""
