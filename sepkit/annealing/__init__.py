"""The theory of cooling: where free hypotheses split, which temperatures follow from it."""
