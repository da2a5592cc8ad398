"""Compute groups: synchronous inside, asynchronous between, through servers that hold the model and its momentum."""
