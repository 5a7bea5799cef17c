"""The version of the package. It has a file of its own because `sepkit/__init__.py` names modules that need it."""

__version__ = "0.1.0"
