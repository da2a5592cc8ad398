"""Real data sets that ship in packages, and the text that every machine already has."""
