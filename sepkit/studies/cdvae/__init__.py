"""Continuously deep variational autoencoders of images: a hierarchy of latent SDEs (thesis, part C).

`config` declares the model and its training, `data` the image sets, `model` the networks, `task` the training, and
`evaluate` the bound on the evidence by number of steps. The latent stochastic differential equations are in `levels`.
"""
