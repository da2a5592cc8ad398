"""How bytes move: threads in memory, torch process groups, simulated links; and wrappers around any of them."""
