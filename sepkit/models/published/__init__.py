"""Models that others can name: those that ship with sepkit, and those on the Hugging Face Hub."""
