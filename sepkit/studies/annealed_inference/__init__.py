"""The annealed VI paper: how annealing keeps variational inference from losing a mode, figures 1 to 7.

The theory is in `sepkit.annealing`, the flow in `sepkit.models.coupling`. Here are the experiments, cell by cell.

Source: Fogliani, Loureiro and Gabrié, "Annealing in variational inference mitigates mode collapse".
"""
