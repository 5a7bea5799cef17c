"""Annealed variational inference: how cooling keeps a mixture of two Gaussians, or a flow, from losing a mode.

A student q of two equal components with means on the sphere of radius R learns w* N(mu*, I) + (1 - w*) N(-mu*, I),
|mu*| = R, in d dimensions, by gradient steps of size eta / beta on E_q[log q - beta log pi]. The inverse temperature
beta rises from beta_i to 1 in t0 steps. In code: `radius`, `heavy_weight`, `dimension`, `step_size`, `initial_beta`,
`steps`.

`collapse` has the closed forms, `order_parameters` the flow of infinitely many samples, `mixtures` the stochastic
update, `reduced` the same at the cost of three coordinates, `flows` a RealNVP as student. `experiments` are figures 1
to 7 of the paper, cell by cell, and `planning` answers by the closed forms.

Source: Fogliani, Loureiro and Gabrié, "Annealing in variational inference mitigates mode collapse".
"""
