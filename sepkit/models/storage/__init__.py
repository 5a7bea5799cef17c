"""Models on disk: a folder of weights and a description that nothing executes."""
