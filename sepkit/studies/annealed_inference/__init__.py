"""Annealed variational inference: how cooling keeps a mixture of two Gaussians, or a flow, from losing a mode.

A student q of two equal components with means on the sphere of radius R learns w* N(mu*, I) + (1 - w*) N(-mu*, I),
|mu*| = R, in d dimensions, by gradient steps of size eta / beta on E_q[log q - beta log pi]. The inverse temperature
beta rises from beta_i to 1 in t0 steps. In code: `radius`, `heavy_weight`, `dimension`, `step_size`, `initial_beta`,
`steps`.

`planning` has the closed forms and the plans, `order_parameters` the flow of infinitely many samples, `reduced` the
stochastic update at the cost of three coordinates. `experiments` are figures 1 to 7 of the paper, cell by cell, with a
RealNVP as student too; `figures` draws them.

Source: Fogliani, Loureiro and Gabrié, "Annealing in variational inference mitigates mode collapse".
"""
