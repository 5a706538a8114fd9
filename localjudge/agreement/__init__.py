"""Is the judge right? A run held against people, and against another run."""
