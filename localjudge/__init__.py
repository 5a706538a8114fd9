"""localjudge judges the outputs of language models wholly on one's own machines."""

__version__ = "0.1.0"
