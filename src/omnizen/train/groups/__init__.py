"""Compute groups: synchronous inside, asynchronous between; servers hold the model and its momentum."""
