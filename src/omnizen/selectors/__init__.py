"""Which elements of a gradient are sent: stateless choices from a flat tensor, before any codec or reducer."""
