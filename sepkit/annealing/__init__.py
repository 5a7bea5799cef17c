"""The theory of cooling: splits of free hypotheses and the temperatures that follow, Gaussian mixtures under annealed
variational inference, and schedules planned from theory."""
