"""Constrained decoding: from a JSON schema to the tokens that are legal next, with an end that always fits."""
