"""The Triton twins, for tensors on a GPU. Tested in Triton's interpreter; not yet measured on a GPU."""
