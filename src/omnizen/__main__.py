"""Lets `python -m omnizen` do what the `omnizen` command does."""

from omnizen.cli.main import main

main()
