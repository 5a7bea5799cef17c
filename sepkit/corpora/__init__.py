"""Turn corpora into manifests (`train.jsonl`, `dev.jsonl`, `test.jsonl`): one module per corpus."""
