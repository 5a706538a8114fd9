"""A large judge's verdicts become a training set, and that a small judge."""
