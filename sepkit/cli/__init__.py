"""The commands: one file each, a thin skin over a function that a notebook can call."""
