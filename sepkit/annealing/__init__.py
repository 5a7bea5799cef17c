"""Temperatures of annealed multiple choice learning: find the critical one, and plan a schedule."""
