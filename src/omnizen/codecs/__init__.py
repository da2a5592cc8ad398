"""How a tensor is packed: stateless, network-free, composable."""
