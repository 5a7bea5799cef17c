"""How models are optimised: the Lightning task, its callbacks, and `train`."""
