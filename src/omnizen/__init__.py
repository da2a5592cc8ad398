"""Omnizen trains one PyTorch model across whatever machines you have, as fast as those machines allow."""

from omnizen._version import __version__

__all__ = ["__version__"]
