"""What lossy schemes cost in accuracy: loss against steps and against bytes, on real data."""
