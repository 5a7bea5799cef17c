"""Mutated inputs for every command that reads files from elsewhere."""
