"""Adaptive audiometry: which threshold of an audiogram to measure next, and when to stop (thesis, part A).

The method is a partial VAE. `audiogram` names the dimensions; `synthetic`, `nhanes` and `tables` make and read data;
`network` and `model` are the partial VAE; `masks` and `task` train it; `predictive` and `acquisition` say what is known
and what to measure next; `stopping` says when it is enough; `simulation` and `measures` play and score whole sessions;
`session` is for users.
"""
