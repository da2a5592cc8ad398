"""Optimizers whose work ranks can share."""
