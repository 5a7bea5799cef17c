"""What shows results: figures, tables, pages, and runs side by side."""
