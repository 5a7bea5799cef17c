"""Show results: figures, tables, pages, and comparisons of runs."""
