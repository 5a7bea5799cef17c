"""The version of the package, in a separate file because modules that `sepkit/__init__.py` names need it."""

__version__ = "0.2.0"
