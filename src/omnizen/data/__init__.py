"""Real data sets that ship inside packages, and the user's own text; see `sets` for the table."""
