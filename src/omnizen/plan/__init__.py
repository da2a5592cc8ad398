"""From facts to a plan: predicted costs, the choice, what was rejected and why."""
