"""The few inner loops: one plain reference each, with numba and Triton twins of the same signature."""
