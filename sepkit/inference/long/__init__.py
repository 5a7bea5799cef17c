"""Recordings of any length, in chunks and in bounded memory."""
