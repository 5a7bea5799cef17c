"""The commands: one file each, a thin layer over a function that a notebook can call."""
