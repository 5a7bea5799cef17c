"""The aMCL paper (free hypotheses, three Gaussians, UCI) and the CCLVQ paper: matching where the truth is known.

A set of n predictions stands for a distribution; its quality is the mean squared distance to the nearest of them. A
target is a point, so that a cost is (B, n, 1) and every assignment of `sepkit.objectives.assignment` serves.

Sources: Perera et al., "Annealed multiple choice learning", sections 4 and 5.1, appendices A to D; Delattre et al.,
"Conditional distribution quantization in machine learning".
"""
