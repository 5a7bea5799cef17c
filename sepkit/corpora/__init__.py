"""How a corpus becomes manifests (`train.jsonl`, `dev.jsonl`, `test.jsonl`): one module a corpus."""
