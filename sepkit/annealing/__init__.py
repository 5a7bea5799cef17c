"""The theory of cooling: where free hypotheses split and which temperatures follow, Gaussian mixtures under annealed
variational inference, and schedules planned from theory."""
