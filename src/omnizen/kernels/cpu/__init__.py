"""The numba twins, for tensors on the processor. Compiled once per machine; they release the interpreter lock."""
