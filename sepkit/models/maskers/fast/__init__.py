"""Faster ways to compute maskers on CPUs, imported when a masker that names them (`Masker.fast`) is made.

A masker's own file follows its paper. The functions here replace its methods where only time and memory differ;
`sepkit.models.maskers.replaceable` has the conditions.
"""
