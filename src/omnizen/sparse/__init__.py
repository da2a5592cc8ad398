"""Which weights exist: scores, masks, pruning."""
