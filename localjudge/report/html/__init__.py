"""Runs as pages to look at: `data` reads a run, `build` makes one file of it, the scripts beside show it."""
