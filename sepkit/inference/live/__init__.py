"""Sound that is separated while it comes in."""
