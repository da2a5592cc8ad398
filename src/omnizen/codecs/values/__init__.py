"""How values are packed: quantised, fitted by a curve, or without loss. ``paired`` puts places beside them."""
