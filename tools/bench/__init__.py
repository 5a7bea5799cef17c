"""Side-by-side benchmarks: each line times sepkit and another toolkit in turns, after checking that they agree."""
