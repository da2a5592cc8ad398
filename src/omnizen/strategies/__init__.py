"""Who shares what, and when: frozen rows, and short functions that make them."""

from omnizen.strategies.groups import groups
from omnizen.strategies.local import local_sgd
from omnizen.strategies.per_shard_steps import per_shard_steps
from omnizen.strategies.strategy import Strategy
from omnizen.strategies.sync import sync

__all__ = ["Strategy", "groups", "local_sgd", "per_shard_steps", "sync"]
