"""The other systems of the papers, one room each, on the floor above training, evaluation and reporting.

A room holds what it needs of `config.py` (torch-free), `data.py`, `model.py`, `task.py` and `measures.py`. Rooms
import from the floors below and never from one another, so that whoever has read one room knows all of that system.
"""
