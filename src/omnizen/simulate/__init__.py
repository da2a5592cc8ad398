"""Training strategies on imagined clusters: events on virtual clocks, no tensors moved, thousands of workers."""
