"""Benchmarks: our methods beside the field's, same model, data, seed and links, in one run."""
