"""What was predicted beside what happened: one HTML file, TensorBoard scalars, a Chrome trace."""
